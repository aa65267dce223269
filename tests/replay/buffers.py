"""Buffers, runs with a memory and what is to be known of them, for the tests of replay."""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import torch
from transformers import TrainerCallback

from mixer import MixingTrainer
from mixer.mixture.step_plan import StepPlan
from replay import OnDisk, ReplayBuffer, ReplayRatio
from replay.retrieval import Retrieval
from tests.helpers import Tokens, arguments, build_model, mixing_trainer, weights_of


class Masked(Tokens):
    """Has one in five tokens masked, at random."""

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        row = dict(super().__getitem__(index))
        row["input_ids"] = torch.where(torch.rand(len(row["input_ids"])) < 0.2, 1, row["input_ids"])
        return row


class InTurn(Retrieval):
    """Replays every entry before any again: a retrieval that is told of draws, new entries and removed ones."""

    remembered = ("line", "position")

    def start(self, capacity: int, key: int) -> None:
        self.line, self.position = list[int](), 0

    def slots(self, start: int, count: int, size: int) -> Any:
        skipped = start - self.position
        return np.array([self.line[(skipped + number) % size] for number in range(count)], dtype=np.int64)

    def drawn(self, start: int, slots: Any) -> None:
        self.position = start + len(slots)
        self.placed(slots)

    def placed(self, slots: Any) -> None:
        now = slots.tolist()
        self.line = [slot for slot in self.line if slot not in now] + now

    def removed(self, slot: int, last: int) -> None:
        self.line.remove(slot)
        self.line = [slot if other == last else other for other in self.line]


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


class Columns(Tokens):
    def read_columns(self, indices: Any) -> dict[str, torch.Tensor]:
        rows = [self.rows[index] for index in indices.tolist()]
        return {name: torch.stack([row[name] for row in rows]) for name in rows[0]}


def arrow(num_samples: int, seed: int) -> datasets.Dataset:
    """A data set with columns that the model does not take."""
    rows = [{name: value.tolist() for name, value in row.items()} for row in Tokens(num_samples, seed, length=8).rows]
    return datasets.Dataset.from_list([{**row, "text": f"row {n}", "meta": n} for n, row in enumerate(rows)])


class Watch(TrainerCallback):
    """Notes of every step what was trained on, what was drawn from the memories, and what they held before."""

    def __init__(self) -> None:
        self.trainer: Any = None
        self.plans: list[StepPlan] = []
        self.offered: list[list[tuple[str, int]]] = []  # stream and index, stream after stream
        self.drawn: list[dict[str, list[int]]] = []  # addresses by memory
        self.held: list[dict[str, list[int]]] = []  # addresses by memory, before the step
        self.inputs: list[list[dict[str, Any]]] = []  # inputs of the micro-batches, with streams and positions

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        batch, planner = self.trainer._parts.methods.trained, self.trainer.mixing.planner
        plan, offered, drawn = batch.plan, [], {}
        for number, (stream, cursor) in enumerate(zip(planner.streams, planner.cursors, strict=True)):
            start, count = int(plan.starts[number]), int(plan.counts[number])
            if count and not stream.is_iterable:
                found = cursor.references(range(start, start + count)).tolist()
                if stream.is_memory:
                    drawn[stream.name] = found
                else:
                    offered += [(stream.name, index) for index in found]
        memories = [stream for stream in planner.streams if stream.is_memory]
        self.plans.append(plan)
        self.offered.append(offered)
        self.drawn.append(drawn)
        self.held.append({m.name: m.dataset.addresses(np.arange(len(m.dataset))).tolist() for m in memories})
        micros = [micro for micro in batch.micro_batches if not micro.is_padding]
        more = [{"stream_ids": micro.stream_ids, "positions": micro.positions} for micro in micros]
        self.inputs.append([{**micro.inputs, **own} for micro, own in zip(micros, more, strict=True)])

    @property
    def rows(self) -> list[list[tuple[int, int, torch.Tensor]]]:
        """Stream, position and tokens of each row of each step."""
        names = ("stream_ids", "positions", "input_ids")
        return [[row for micro in step for row in zip(*(micro[n] for n in names), strict=True)] for step in self.inputs]


def make(folder: Path, streams: Any, watch: Watch | None = None, **changes: Any) -> MixingTrainer:
    options = {"max_steps": 12, "per_device_train_batch_size": 5, "lr_scheduler_type": "constant"}
    args = arguments(folder, **{**options, **changes.pop("args", {})})
    fields = {"mixing": ReplayRatio(0.3), "batch_size": 10, "model": build_model("llama"), **changes}
    trainer = mixing_trainer(MixingTrainer, args=args, train_dataset=streams, **fields)
    if watch is not None:
        watch.trainer = trainer
        trainer.add_callback(watch)
    return trainer


def train(folder: Path, streams: Any, watch: Watch | None = None, **changes: Any) -> MixingTrainer:
    trainer = make(folder, streams, watch, **changes)
    trainer.train()
    return trainer


def memory_of(trainer: MixingTrainer, name: str = "memory") -> ReplayBuffer:
    (buffer,) = [stream.dataset for stream in trainer.streams if stream.name == name]
    return buffer


def hexadecimal(trainer: MixingTrainer) -> str:
    return hashlib.sha256(weights_of(trainer.model).numpy().tobytes()).hexdigest()
