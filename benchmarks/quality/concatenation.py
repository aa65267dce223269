"""What is done without mixing: all rows in one data set, shuffled, for TRL's own trainer and loss."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import datasets
import torch
from torch import Tensor
from torch.utils.data import ConcatDataset
from transformers import PreTrainedModel, PrinterCallback, TrainerCallback
from trl import SFTConfig, SFTTrainer  # type: ignore[attr-defined]  # lazy imports

from benchmarks.quality.data import Splits
from benchmarks.quality.scenarios import Scenario
from benchmarks.quality.smollm2 import tokenizer

_PREPARED = {"dataset_kwargs": {"skip_prepare_dataset": True}, "remove_unused_columns": False, "max_length": None}
_ALIKE = {"gradient_checkpointing": False}  # as for all competitors; it costs time alone
_COLUMNS = ("inputs_embeds", "attention_mask", "labels")


def train(
    scenario: Scenario,
    model: PreTrainedModel,
    parts: Mapping[str, Splits],
    folder: Path,
    seed: int,
    callbacks: Sequence[TrainerCallback],
) -> dict[str, Any]:
    """Trains by `trl.SFTTrainer` on the rows of all streams in one data set.

    Args:
        scenario: The scenario.
        model: The model.
        parts: What `Scenario.read` gave.
        folder: The output folder.
        seed: The seed.
        callbacks: Callbacks of the trainer.

    Returns:
        `shares` of the streams, which are those of their rows, and `tokens`.
    """
    whole = ConcatDataset([parts[name]["train"] for name in scenario.streams])
    own = {"output_dir": str(folder), "seed": seed, "eval_strategy": "no"}
    trainer = SFTTrainer(
        model,
        SFTConfig(**scenario.content["training"] | own | _ALIKE | _PREPARED),
        data_collator=partial(_collated, whole),
        train_dataset=datasets.Dataset.from_dict({"place": range(len(whole))}),
        processing_class=tokenizer(),
        callbacks=[*callbacks],
    )
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    sizes = {name: len(parts[name]["train"]) for name in scenario.streams}  # type: ignore[arg-type]
    shares = {name: size / len(whole) for name, size in sizes.items()}
    return {"shares": shares, "tokens": int(trainer._total_train_tokens)}


def _collated(whole: ConcatDataset[Any], places: Sequence[Mapping[str, int]]) -> dict[str, Tensor]:
    """Stacks rows, which are padded on the left, without padding that none of them needs."""
    samples = [whole[row["place"]] for row in places]
    columns = {name: torch.stack([sample[name] for sample in samples]) for name in _COLUMNS}
    length = int(columns["attention_mask"].sum(dim=1).max())
    return {name: values[:, -length:] for name, values in columns.items()}
