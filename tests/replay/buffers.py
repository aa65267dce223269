"""Buffers, runs with a memory and what is to be known of them, for the tests of replay."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import torch
from transformers import TrainerCallback

from mixer import MixingTrainer
from mixer.drawers import StreamShare
from mixer.plan import Plan
from replay import OnDisk, ReplayBuffer, ReplayRatio
from tests.helpers import Tokens, arguments, build_model, weights_of

STORAGES: dict[str, Callable[[Path], Any]] = {
    "references": lambda folder: "references",
    "memory": lambda folder: "memory",
    "disk": lambda folder: OnDisk(folder, rows_per_segment=4),
}


def letters(count: int = 40, prefix: str = "s") -> list[dict[str, str]]:
    return [{"text": f"{prefix}{number}"} for number in range(count)]


def snapshot(buffer: ReplayBuffer) -> dict[str, Any]:
    """What a buffer is, in a form that `==` compares."""
    return {
        "entries": {name: column.tolist() for name, column in buffer.entries.items()},
        "addresses": buffer._entries["address"].tolist(),
        "counts": (buffer.num_offered, buffer.num_kept, buffer.num_drawn),
        "by source": buffer.num_samples_by_source,
        "selection": {name: np.asarray(value).tolist() for name, value in buffer.selection.state_dict().items()},
        "retrieval": {name: np.asarray(value).tolist() for name, value in buffer.retrieval.state_dict().items()},
    }


class Classes(torch.utils.data.Dataset):
    """Rows with one class each, the first of them frequent; no column tells the classes."""

    def __init__(self, num_samples: int, seed: int, length: int = 8):
        self.tokens = Tokens(num_samples, seed, "sequence-classification", length)
        random = np.random.default_rng(seed)
        self.classes = np.minimum(random.integers(0, 9, num_samples) // 4, 2).tolist()

    def __len__(self) -> int:
        return len(self.classes)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {**self.tokens[index], "labels": torch.tensor(self.classes[index])}


class Masked(Tokens):
    """Tokens with another twist each time they are read."""

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        row = dict(super().__getitem__(index))
        row["input_ids"] = torch.where(torch.rand(len(row["input_ids"])) < 0.2, 1, row["input_ids"])
        return row


class Columns(Tokens):
    """Tokens that can be read by columns."""

    def read_columns(self, indices: Any) -> dict[str, torch.Tensor]:
        rows = [self.rows[index] for index in indices.tolist()]
        return {name: torch.stack([row[name] for row in rows]) for name in rows[0]}


def arrow(num_samples: int, seed: int) -> datasets.Dataset:
    """A data set with columns that the model does not take."""
    rows = [{name: value.tolist() for name, value in row.items()} for row in Tokens(num_samples, seed, length=8).rows]
    return datasets.Dataset.from_list([{**row, "text": f"row {n}", "meta": n} for n, row in enumerate(rows)])


class Watch(TrainerCallback):
    """Notes of every update its plan, what was drawn from the memories and what is in them once it is over."""

    def __init__(self, *memories: str):
        self.memories = memories
        self.trainer: MixingTrainer | None = None
        self.plans: list[Plan] = []
        self.offered: list[list[tuple[str, int]]] = []  # stream and index, by stream
        self.drawn: list[dict[str, list[int]]] = []  # addresses
        self.held: list[dict[str, list[int]]] = []  # addresses in the buffers after the update

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        planner = self.trainer.mixing.planner
        plan = self.plans[-1]
        offered, drawn = [], {}
        for stream_id, stream in enumerate(planner.streams):
            start, count = int(plan.starts[stream_id]), int(plan.counts[stream_id])
            if count and stream.name in self.memories:
                drawn[stream.name] = planner.drawers[stream_id].references(range(start, start + count)).tolist()
            elif count and not stream.is_iterable:
                found = planner.drawers[stream_id].references(range(start, start + count)).tolist()
                offered += [(stream.name, index) for index in found]
        self.offered.append(offered)
        self.drawn.append(drawn)
        buffers = {stream.name: stream.dataset for stream in planner.streams if stream.is_memory}
        self.held.append({name: buffer._entries["address"].tolist() for name, buffer in buffers.items()})

    def watch(self, trainer: MixingTrainer) -> None:
        self.trainer, mixing = trainer, trainer.mixing
        next_plan = mixing.next_plan

        def noting() -> Plan | None:
            plan = next_plan()
            self.plans += [] if plan is None else [plan]
            return plan

        mixing.next_plan = noting  # forecasts are made by copies, which plan for themselves
        copies = type(mixing).forecast

        def forecast() -> Any:
            del mixing.next_plan
            try:
                ahead = copies(mixing)
            finally:
                mixing.next_plan = noting
            return ahead

        mixing.forecast = forecast


def train(folder: Path, streams: Any, checkpoint: Any = None, **changes: Any) -> MixingTrainer:
    """Trains a small model on streams, a memory among them."""
    trainer = make(folder, streams, **changes)
    trainer.train(resume_from_checkpoint=checkpoint)
    return trainer


def make(folder: Path, streams: Any, **changes: Any) -> MixingTrainer:
    options = {"max_steps": 12, "per_device_train_batch_size": 5, "lr_scheduler_type": "constant"}
    fields = {"mixing": ReplayRatio(0.3), "batch_size": 10, "model": build_model("llama")}
    args = arguments(folder, **{**options, **changes.pop("args", {})})
    return MixingTrainer(args=args, train_dataset=streams, **{**fields, **changes})


def share_of(trainer: MixingTrainer, stream_id: int, positions: range) -> StreamShare:
    return StreamShare(stream_id, positions, trainer.mixing.planner.drawers[stream_id].references(positions))


def weights(trainer: MixingTrainer) -> torch.Tensor:
    return weights_of(trainer.model)
