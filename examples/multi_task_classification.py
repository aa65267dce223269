r"""Trains one encoder on several tasks of sentence classification, with a head for each, in the manner of run_glue.py.

Here (`python -m examples.data` writes the files and an encoder that has learned nothing yet):

    python examples/multi_task_classification.py --do_train --do_eval --output_dir runs/examples/multi_task \
        --max_steps 200 --learning_rate 3e-3 --logging_steps 20 --report_to none

For the real thing: `--model_name_or_path answerdotai/ModernBERT-base --learning_rate 5e-5 --num_train_epochs 3 --bf16`,
`--batch_size 256 --per_device_train_batch_size 32`, your files in `--task_files`, or in `load_task` data sets of the
hub, such as `load_dataset("nyu-mll/glue", "cola")`, and the names of their columns. On several GPUs: `torchrun
--nproc_per_node 8` in place of `python`; `--batch_size` is that of all of them together.
"""

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from datasets import DatasetDict, load_dataset
from transformers import AutoModel, AutoTokenizer, EvalPrediction, HfArgumentParser, TrainingArguments, set_seed

from mixer import Head, MixingTrainer, MultiTaskModel

FORMATS = {".csv": "csv", ".json": "json", ".jsonl": "json", ".parquet": "parquet"}


@dataclass
class DataArguments:
    """What to learn, and how much of each task in a step."""

    task_files: list[str] = field(
        default_factory=lambda: [
            "topic=data/examples/classification/topic.csv",
            "language=data/examples/classification/language.jsonl",
            "domain=data/examples/classification/domain.parquet",
        ],
        metadata={"help": "NAME=PATH of each task: a file with the columns text and label."},
    )
    validation_share: float = field(default=0.1, metadata={"help": "Share of each task that is held out."})
    max_seq_length: int = field(default=48, metadata={"help": "Longer texts are cut."})
    mixing: str = field(default="Uniform", metadata={"help": "The policy, one of `mixer policies`."})
    batch_size: int = field(default=48, metadata={"help": "Samples of a step, over all tasks and devices."})


@dataclass
class ModelArguments:
    """Which encoder to begin with."""

    model_name_or_path: str = field(
        default="data/examples/encoder", metadata={"help": "A folder, or a name of the hub."}
    )


def load_task(path: str, validation_share: float, seed: int) -> DatasetDict:
    """Reads a task, and holds a share of it out that has as much of each class."""
    data = load_dataset(FORMATS[Path(path).suffix], data_files=path, split="train").class_encode_column("label")
    return data.train_test_split(validation_share, stratify_by_column="label", seed=seed)


def accuracy(prediction: EvalPrediction) -> dict[str, float]:
    """Tells how many classes are right."""
    return {"accuracy": float((np.argmax(prediction.predictions, axis=1) == prediction.label_ids).mean())}


def main() -> None:
    """Trains and evaluates."""
    parser = HfArgumentParser((ModelArguments, DataArguments, TrainingArguments))
    model_args, data_args, training_args = parser.parse_args_into_dataclasses()
    set_seed(training_args.seed)

    paths = dict(entry.split("=", 1) for entry in data_args.task_files)
    tasks = {name: load_task(path, data_args.validation_share, training_args.seed) for name, path in paths.items()}
    heads = {name: Head(num_labels=task["train"].features["label"].num_classes) for name, task in tasks.items()}
    tokenizer = AutoTokenizer.from_pretrained(model_args.model_name_or_path)
    encoder = AutoModel.from_pretrained(model_args.model_name_or_path)

    def preprocess(examples):
        return tokenizer(examples["text"], max_length=data_args.max_seq_length, truncation=True)

    with training_args.main_process_first(desc="tokenize"):
        tasks = {name: task.map(preprocess, batched=True, remove_columns="text") for name, task in tasks.items()}

    trainer = MixingTrainer(
        model=MultiTaskModel.from_encoder(encoder, heads),
        args=training_args,
        train_dataset={name: task["train"] for name, task in tasks.items()},  # the names are those of the heads
        eval_dataset={name: task["test"] for name, task in tasks.items()},
        compute_metrics=accuracy,
        processing_class=tokenizer,
        mixing=data_args.mixing,
        batch_size=data_args.batch_size,
    )

    if training_args.do_train:
        result = trainer.train(resume_from_checkpoint=training_args.resume_from_checkpoint)
        trainer.save_model()
        trainer.log_metrics("train", result.metrics)
        trainer.save_metrics("train", result.metrics)
        trainer.save_state()

    if training_args.do_eval:
        metrics = trainer.evaluate()
        trainer.log_metrics("eval", metrics)
        trainer.save_metrics("eval", metrics)


if __name__ == "__main__":
    main()
