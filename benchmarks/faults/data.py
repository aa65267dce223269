"""Data and losses that go wrong inside of the ranks."""

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import TrainerCallback

from benchmarks.faults.run import MARK, Parts, Rows, Start
from replay import ReplayBuffer

STREAM = "a"  # the one that is disturbed
READ = "read.txt"  # which samples of it were read
_LONG = 10


class _Steps(TrainerCallback):
    """Knows how many steps are done."""

    def __init__(self) -> None:
        self.done = 0

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.done = state.global_step


def note_reads(parts: Parts, start: Start, rank: int) -> None:
    """Notes which samples are read, to draw broken ones from; changes nothing."""
    file = os.open(Path(start.case) / READ, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def give(index: int, row: dict[str, Tensor]) -> Any:
        os.write(file, f"{index}\n".encode())
        return row

    parts.streams[STREAM].change = give


def failing_sample(parts: Parts, start: Start, rank: int) -> None:
    """One sample cannot be read."""
    wanted = start.fault["index"]

    def give(index: int, row: dict[str, Tensor]) -> Any:
        if index == wanted:
            raise OSError(errno.EIO, "the disk under this sample is gone")
        return row

    parts.streams[STREAM].change = give


def skipped_sample(parts: Parts, start: Start, rank: int) -> None:
    """One sample cannot be read, and the run is told to leave such samples out."""
    failing_sample(parts, start, rank)
    parts.training["on_sample_error"] = "skip"
    parts.streams["memory"] = ReplayBuffer(16)  # one that keeps something of each sample cannot do without any


def empty_sample(parts: Parts, start: Start, rank: int) -> None:
    """One sample has no tokens."""
    wanted = start.fault["index"]
    parts.streams[STREAM].change = lambda index, row: _each(row, lambda v: v[:0] if index == wanted else v)


def long_sample(parts: Parts, start: Start, rank: int) -> None:
    """One sample is ten times as long as all others."""
    wanted = start.fault["index"]
    parts.streams[STREAM].change = lambda index, row: _each(row, lambda v: v.repeat(_LONG) if index == wanted else v)


def _each(row: dict[str, Tensor], change: Callable[[Tensor], Tensor]) -> dict[str, Tensor]:
    return {name: change(values) for name, values in row.items()}


def shrinking_data(parts: Parts, start: Start, rank: int) -> None:
    """The data set becomes shorter while the run goes on."""
    steps, step, length = _Steps(), start.fault["step"], len(parts.streams[STREAM])
    parts.callbacks.append(steps)
    parts.streams[STREAM].length = lambda: length // _LONG if steps.done >= step else length


def growing_data(parts: Parts, start: Start, rank: int) -> None:
    """The data set becomes longer while the run goes on."""
    steps, step, length = _Steps(), start.fault["step"], len(parts.streams[STREAM])
    parts.callbacks.append(steps)
    parts.streams[STREAM].length = lambda: length + _LONG if steps.done >= step else length


def other_length(parts: Parts, start: Start, rank: int) -> None:
    """The data set has another length when the run goes on."""
    parts.streams[STREAM] = Rows(len(parts.streams[STREAM]) + start.fault["more"], 0)


def bad_loss(parts: Parts, start: Start, rank: int) -> None:
    """The loss of one sample is not a finite number, or its gradient alone."""
    wanted, value = start.fault["index"], start.fault["value"]
    parts.training["nonfinite"] = start.fault["nonfinite"]
    marked: list[Tensor] = []

    def give(index: int, row: dict[str, Tensor]) -> Any:
        return {**row, "input_ids": torch.full_like(row["input_ids"], MARK)} if index == wanted else row

    def before(module: nn.Module, args: Any, given: dict[str, Any]) -> None:
        marked[:] = [(given["input_ids"] == MARK).any(1)]

    def after(module: nn.Module, args: Any, logits: Tensor) -> Tensor:
        is_marked = marked[0][:, None, None]
        if value == "nan-gradient":
            if logits.requires_grad:
                logits.register_hook(lambda gradient: torch.where(is_marked, torch.nan, gradient))
            return logits
        worse = torch.full_like(logits, torch.nan if value == "nan-loss" else -torch.inf)
        if value == "inf-loss":
            worse[..., MARK] = 0.0  # what no label is: each that is asked for is impossible, and its loss infinite
        return logits + torch.where(is_marked, worse, 0.0)

    parts.streams[STREAM].change = give
    parts.model.register_forward_pre_hook(before, with_kwargs=True)
    parts.model.lm_head.register_forward_hook(after)
