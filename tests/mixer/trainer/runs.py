"""Short runs on three small streams, and what is read off them."""

from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Subset

from mixer import MixingConfig, MixingTrainer, Order, Stream
from mixer.run.config import OF_TRAINER
from tests.helpers import MODEL_DATA, GradientRecorder, arguments, build_model, three_streams

_OF_TRAINING = {field.name for field in fields(MixingConfig)} - {*OF_TRAINER}


def make(folder: Path, model: Any = "llama", kind: Any = MixingTrainer, **changes: Any) -> MixingTrainer:
    """A trainer of three streams for the model; changes may be of the training's arguments or of the trainer's."""
    options = {name: changes.pop(name) for name in [*changes] if name in _OF_TRAINING}
    if isinstance(model, str):
        model, data = build_model(model), MODEL_DATA[model]
    else:
        data = "causal-lm"
    if "train_dataset" not in changes:
        changes["train_dataset"] = three_streams(data)
    trainer: MixingTrainer = kind(model, arguments(folder, **options), **changes)
    return trainer


def train(folder: Path, model: Any = "llama", resume: Any = None, **changes: Any) -> MixingTrainer:
    trainer = make(folder, model, **changes)
    trainer.train(resume_from_checkpoint=resume and str(resume))
    return trainer


def gradients_of(folder: Path, model: Any = "llama", **changes: Any) -> torch.Tensor:
    """The gradients of each step of a run."""
    recorder = GradientRecorder()
    train(folder, model, callbacks=[recorder], **changes)
    return torch.stack(recorder.gradients)


def logged(trainer: MixingTrainer, key: str) -> list[float]:
    return [entry[key] for entry in trainer.state.log_history if key in entry]


def padded(rows: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """Rows of tokens with labels, put together."""
    fills, pad = {"input_ids": 0, "attention_mask": 0, "labels": -100}, torch.nn.utils.rnn.pad_sequence
    return {name: pad([row[name] for row in rows], True, fill) for name, fill in fills.items()}


def folder_of(trainer: MixingTrainer) -> Path:
    return Path(str(trainer.args.output_dir))


def as_drawn(data: Any) -> Any:
    """The rows of an epoch in the order of a run with the seed 42, for the Trainer to take one after the other."""
    order = Order(len(data), Stream("train", data).order_key(42)).indices(0, len(data)).tolist()
    return data.select(order) if hasattr(data, "select") else Subset(data, order)
