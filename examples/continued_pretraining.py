r"""Goes on with the pre-training of a language model on a new domain and replays a little of the old, after run_clm.py.

Here (`python -m examples.data` writes Python, the new domain, and a base model that has learned English):

    python examples/continued_pretraining.py --output_dir runs/examples/continued_pretraining --num_train_epochs 2 \
        --learning_rate 5e-3 --warmup_steps 10 --logging_steps 20 --report_to none

and once more with `--replay_share 0` and another folder, to see what is forgotten without.

For the real thing: `--model_name_or_path Qwen/Qwen3-1.7B-Base --learning_rate 1e-5 --num_train_epochs 1 --bf16
--gradient_checkpointing`, `--block_size 4096 --batch_size 256 --per_device_train_batch_size 4`, your files of the new
domain, and of the old one a sample of what the model was trained on before, or of what stands for it, such as
`load_dataset("HuggingFaceFW/fineweb-edu", "sample-10BT", split="train")` in `load_texts`. On several GPUs: `torchrun
--nproc_per_node 8` in place of `python`; `--batch_size` is that of all of them together.
"""

import math
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

from datasets import Dataset, load_dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, HfArgumentParser, set_seed

from mixer import MixingConfig, MixingTrainer

FORMATS = {".txt": "text", ".jsonl": "json", ".parquet": "parquet"}


@dataclass
class DataArguments:
    """What to learn, what to replay, and how much of it."""

    new_file: str = field(
        default="data/examples/text/python/train.jsonl", metadata={"help": "A file with the column text."}
    )
    new_validation_file: str = field(
        default="data/examples/text/python/validation.jsonl", metadata={"help": "The same to evaluate on."}
    )
    old_file: str = field(default="data/examples/text/english/train.txt", metadata={"help": "What is replayed."})
    old_validation_file: str = field(
        default="data/examples/text/english/validation.txt", metadata={"help": "What shows what is forgotten."}
    )
    replay_share: float = field(default=0.05, metadata={"help": "Share of the old domain in every step."})
    block_size: int = field(default=128, metadata={"help": "Tokens of a sample."})


@dataclass
class ModelArguments:
    """Which model to go on with."""

    model_name_or_path: str = field(default="data/examples/base", metadata={"help": "A folder, or a name of the hub."})


def load_texts(path: str) -> Dataset:
    """Reads a file of texts."""
    return load_dataset(FORMATS[Path(path).suffix], data_files=path, split="train")


def main() -> None:
    """Trains, and prints what was learned and what was forgotten."""
    parser = HfArgumentParser((ModelArguments, DataArguments, MixingConfig))
    parser.set_defaults(batch_size=20)
    model_args, data_args, training_args = parser.parse_args_into_dataclasses()
    set_seed(training_args.seed)
    tokenizer = AutoTokenizer.from_pretrained(model_args.model_name_or_path)
    model = AutoModelForCausalLM.from_pretrained(model_args.model_name_or_path)

    def into_blocks(examples):
        """Puts texts one after the other, each with an end, and cuts them into blocks."""
        ids = [[*ids, tokenizer.eos_token_id] for ids in tokenizer(examples["text"])["input_ids"]]
        joined, size = list(chain.from_iterable(ids)), data_args.block_size
        blocks = [joined[start : start + size] for start in range(0, len(joined) - size + 1, size)]
        return {"input_ids": blocks, "labels": blocks}

    def load_blocks(path):
        texts = load_texts(path)
        return texts.map(into_blocks, batched=True, remove_columns=texts.column_names)

    with training_args.main_process_first(desc="tokenize and cut"):
        train = {"new": load_blocks(data_args.new_file), "old": load_blocks(data_args.old_file)}
        validation = {
            "new": load_blocks(data_args.new_validation_file),
            "old": load_blocks(data_args.old_validation_file),
        }

    share = data_args.replay_share
    training_args.epoch_size = round(len(train["new"]) / (1 - share))  # an epoch is one pass over the new domain
    trainer = MixingTrainer(
        model=model,
        args=training_args,
        train_dataset=train,
        eval_dataset=validation,
        processing_class=tokenizer,
        mixing={"new": 1 - share, "old": share},
    )
    before = trainer.evaluate()
    trainer.train(resume_from_checkpoint=training_args.resume_from_checkpoint)
    after = trainer.evaluate()
    trainer.save_model()
    trainer.save_metrics("eval", after)

    if trainer.is_world_process_zero():
        counts = trainer.ledger.to_pandas().groupby("stream")["count"].sum()
        for name in train:
            losses = before[f"eval_{name}_loss"], after[f"eval_{name}_loss"]
            learned = "loss {:.3f} -> {:.3f}, perplexity {:.1f} -> {:.1f}".format(*losses, *map(math.exp, losses))
            print(f"{name}: {learned}, {counts[name]} samples ({counts[name] / counts.sum():.1%})")


if __name__ == "__main__":
    main()
