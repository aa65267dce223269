r"""Learns the intents of requests domain by domain, with a small buffer of earlier ones (class-incremental learning).

Here (`python -m examples.data` writes an encoder that has learned nothing yet; the requests are a part of CLINC150):

    python examples/class_incremental_intents.py --output_dir runs/examples/intents --num_train_epochs 6 \
        --learning_rate 3e-3 --lr_scheduler_type constant --save_strategy no --report_to none

and once more with `--capacity 0` and another folder, to see what is forgotten without.

For the real thing: `--model_name_or_path answerdotai/ModernBERT-base --learning_rate 5e-5 --num_train_epochs 5 --bf16`,
`--capacity 1500 --save_strategy epoch`, `--data_folder` with `data_full.json` and `domains.json` of CLINC150 as a whole
(github.com/clinc/oos-eval); in place of `clinc150(...)` any two data sets with a column of classes and one of tasks. On
several GPUs: `torchrun --nproc_per_node 8` in place of `python`; `--batch_size` is that of all of them together.
"""

from dataclasses import dataclass, field

from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    HfArgumentParser,
    TrainingArguments,
    set_seed,
)

from replay import ReplayBuffer
from tasks.continual.continual import ContinualRun
from tasks.metrics.metrics import all_metrics
from tasks.sequences import by_column
from tasks.sources import clinc150


@dataclass
class ScriptArguments:
    """What to learn, with which memory."""

    model_name_or_path: str = field(
        default="data/examples/encoder", metadata={"help": "A folder, or a name of the hub."}
    )
    data_folder: str = field(default="examples/data_files/clinc150_subset", metadata={"help": "Requests and intents."})
    capacity: int = field(default=120, metadata={"help": "How many requests are remembered; 0 for no memory."})
    batch_size: int = field(default=16, metadata={"help": "New requests of a step; as many are replayed on top."})
    max_seq_length: int = field(default=24, metadata={"help": "Longer requests are cut."})
    resume: bool = field(default=False, metadata={"help": "Go on with the run in the output folder, if there is one."})


def main() -> None:
    """Trains on one domain after the other, and prints how many intents are known after each."""
    script_args, training_args = HfArgumentParser((ScriptArguments, TrainingArguments)).parse_args_into_dataclasses()
    set_seed(training_args.seed)
    tokenizer = AutoTokenizer.from_pretrained(script_args.model_name_or_path)

    def preprocess(examples):
        return tokenizer(examples["text"], max_length=script_args.max_seq_length, truncation=True)

    splits = clinc150(script_args.data_folder)
    with training_args.main_process_first(desc="tokenize"):
        train, test = (split.map(preprocess, batched=True, remove_columns="text") for split in splits)
    sequence = by_column(train, test, "domain", scenario="class")
    model = AutoModelForSequenceClassification.from_pretrained(
        script_args.model_name_or_path, num_labels=sequence.num_classes
    )
    run = ContinualRun(
        model,
        sequence,
        training_args,
        memory=ReplayBuffer(script_args.capacity, "ClassBalanced") if script_args.capacity else None,
        batch_size=script_args.batch_size,
        processing_class=tokenizer,
    )
    scores = run.run(resume=script_args.resume)

    if training_args.should_save:
        print(scores.to_pandas().round(2).to_string())
        metrics = all_metrics(scores)
        print(f"average accuracy {metrics['average_accuracy']:.3f}, forgetting {metrics['forgetting']:.3f}")


if __name__ == "__main__":
    main()
