"""Small recipes that tests of commands train by."""

import json
import runpy
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
import yaml
from datasets import Dataset
from transformers import LlamaConfig, LlamaForCausalLM

from tests.mixer.tools.recipe.small_tokenizers import byte_level

Runs = Callable[..., str]  # runs a command and gives what it says
ROOT = Path(__file__).parents[2]
SIZES = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
LLAMA = {"model_type": "llama", "vocab_size": 300, "num_key_value_heads": 2, **SIZES}
QUIET = {"save_strategy": "no", "report_to": "none", "use_cpu": True, "disable_tqdm": True}
FACTORY = f"{__name__}.tokens"
RECIPE: dict[str, Any] = {
    "model": {"config": {**LLAMA, "vocab_size": 256}},
    "streams": {
        name: {
            "factory": FACTORY,
            "arguments": {"num_samples": size, "num_validation_samples": 8, "block_length": 16, "seed": size},
        }
        for name, size in (("python", 60), ("cpp", 40))
    },
    "mixing": {"class_path": "LossChange", "init_args": {"num_warmup_observations": 1}},
    "batch_size": 9,
    "training": {
        "per_device_train_batch_size": 4,
        "max_steps": 4,
        "eval_strategy": "steps",
        "eval_steps": 2,
        "eval_on_start": True,
        "logging_steps": 2,
        **QUIET,
    },
}
NO_EVALUATION = {"eval_strategy": "no", "eval_on_start": False}
SAVING = ["--training.save_strategy", "steps", "--training.save_steps"]


def write_recipe(folder: Path, training: dict[str, Any] | None = None, **fields: Any) -> str:
    """Writes the recipe with other fields, and without those that are None; its runs go to `run` beside it."""
    own = {**RECIPE["training"], "output_dir": str(folder / "run"), **(training or {})}
    content = {name: value for name, value in {**RECIPE, **fields, "training": own}.items() if value is not None}
    (folder / "recipe.yaml").write_text(yaml.safe_dump(content, sort_keys=False))
    return str(folder / "recipe.yaml")


def tokens(num_samples: int, num_validation_samples: int, block_length: int, seed: int = 0) -> dict[str, Dataset]:
    """Blocks of random bytes, which take no time to make."""
    rows = np.random.default_rng(seed).integers(1, 256, (num_samples + num_validation_samples, block_length)).tolist()
    made = Dataset.from_list([{"input_ids": row, "labels": row} for row in rows])
    return {"train": made.select(range(num_samples)), "validation": made.select(range(num_samples, len(rows)))}


def write_base_and_rows(folder: Path, rows_by_name: Mapping[str, Sequence[Any]]) -> None:
    """Writes a small Llama of bytes as `base`, and rows as `data/NAME.jsonl`."""
    tokenizer = byte_level()
    tokenizer.save_pretrained(folder / "base")
    torch.manual_seed(0)
    config = LlamaConfig(**SIZES, vocab_size=len(tokenizer), num_key_value_heads=2, pad_token_id=3, eos_token_id=0)
    LlamaForCausalLM(config).save_pretrained(folder / "base")
    (folder / "data").mkdir()
    for name, rows in rows_by_name.items():
        (folder / "data" / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def placed(text: str, folder: Path) -> str:
    """Puts the places below a folder into a configuration, such as that of the base for `BASE`."""
    for name, path in {"BASE": "base", "DATA": "data", "OUT": "out"}.items():
        text = text.replace(name, str(folder / path))
    return text


def on_a_rank(command: list[str], folder: Path) -> None:
    """Runs a command on a rank as `torchrun ... -m mixer` does."""
    with mock.patch.object(sys, "argv", ["mixer", *command]):
        runpy.run_module("mixer", run_name="__main__", alter_sys=True)
