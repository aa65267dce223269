"""Trains a language model with a batch size that ramps up over a budget of tokens, as DeepSeek-V2 and V3 were trained.

Here (`python -m examples.data` writes the text, and a base model of which only the configuration is taken):

    python examples/batch_size_ramp.py

and once more with `--initial 32` and another `--output_dir`: the constant size.

For the real thing: your `--texts`, `--config` with the configuration and tokenizer of the model, sizes in samples of
4,096 tokens: `--block_size 4096 --tokens 10000000000 --initial 256 --final 2048 --ramp_tokens 2000000000 --micro_batch
8 --learning_rate 1e-4`, and `bf16=True, save_strategy="steps", save_steps=0.05` among the arguments. On several GPUs:
`torchrun --nproc_per_node 8` in place of `python`; sizes are those of all of them together.
"""

import argparse
from pathlib import Path

from datasets import Dataset, load_dataset
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, TrainingArguments, set_seed

from mixer import Budget, MixingTrainer, schedules

TEXTS = ["english=data/examples/text/english/train.txt", "python=data/examples/text/python/train.jsonl"]
FORMATS = {".txt": "text", ".jsonl": "json", ".parquet": "parquet"}


def parse_arguments() -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--texts", nargs="+", default=TEXTS, help="NAME=PATH of each: a file with a column text.")
    parser.add_argument("--config", default="data/examples/base", help="Configuration and tokenizer of the model.")
    parser.add_argument("--output_dir", default="runs/examples/batch_size_ramp")
    parser.add_argument("--tokens", type=int, default=300_000, help="Length of the run.")
    parser.add_argument("--initial", type=int, default=8, help="Samples of the first step.")
    parser.add_argument("--final", type=int, default=32, help="Samples of a step after the ramp.")
    parser.add_argument("--ramp_tokens", type=int, default=150_000, help="Length of the ramp.")
    parser.add_argument("--micro_batch", type=int, default=8, help="Samples that a device holds at once.")
    parser.add_argument("--block_size", type=int, default=128, help="Tokens of a sample.")
    parser.add_argument("--learning_rate", type=float, default=3e-3, help="At the initial size.")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def load_blocks(path: str, tokenizer: AutoTokenizer, block_size: int) -> Dataset:
    """Reads texts, puts them one after the other and cuts them into blocks."""
    texts = load_dataset(FORMATS[Path(path).suffix], data_files=path, split="train")

    def into_blocks(examples):
        ids = [number for row in tokenizer(examples["text"])["input_ids"] for number in (*row, tokenizer.eos_token_id)]
        blocks = [ids[start : start + block_size] for start in range(0, len(ids) - block_size + 1, block_size)]
        return {"input_ids": blocks, "labels": blocks}

    return texts.map(into_blocks, batched=True, remove_columns=texts.column_names)


def main() -> None:
    """Trains, and prints how size and loss went."""
    options = parse_arguments()
    set_seed(options.seed)
    tokenizer = AutoTokenizer.from_pretrained(options.config)
    training_args = TrainingArguments(
        options.output_dir,
        per_device_train_batch_size=options.micro_batch,
        learning_rate=options.learning_rate,
        lr_scheduler_type="cosine",
        warmup_steps=0.05,
        logging_steps=10,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        seed=options.seed,
    )
    with training_args.main_process_first(desc="tokenize and cut"):
        paths = dict(entry.split("=", 1) for entry in options.texts)
        data = {name: load_blocks(path, tokenizer, options.block_size) for name, path in paths.items()}
    trainer = MixingTrainer(
        model=AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(options.config)),
        args=training_args,
        train_dataset=data,
        processing_class=tokenizer,
        batch_size=schedules.Ramp(
            options.final, options.ramp_tokens, unit="tokens", initial=options.initial, learning_rate="sqrt"
        ),
        budget=Budget(tokens=options.tokens),
    )
    trainer.train()
    trainer.save_model()

    if trainer.is_world_process_zero():
        clock = trainer.ledger.clock()
        shown = clock.iloc[:: max(len(clock) // 8, 1)]
        print(shown[["step", "tokens", "batch_size", "learning_rate"]].to_string(index=False))


if __name__ == "__main__":
    main()
