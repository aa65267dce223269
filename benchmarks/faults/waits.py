"""Ranks that end by themselves, that are slow, that wait, and whose clock leaps."""

import os
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback

from benchmarks.faults.run import Parts, Start

GO_ON = "go-on.txt"  # when it is there, a step that is held goes on
_SLOWNESS = 10.0
_LONG_SECONDS = 4.0
_MOST_HELD_SECONDS = 45.0


class _Long(TrainerCallback):
    """Makes one step a long one."""

    def __init__(self, step: int):
        self._step = step

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        end = time.monotonic() + _LONG_SECONDS
        while state.global_step == self._step and time.monotonic() < end:
            time.sleep(0.01)


def long_step(parts: Parts, start: Start, rank: int) -> None:
    """One step takes some seconds on all ranks."""
    parts.callbacks.append(_Long(start.fault["step"]))


class _Held(TrainerCallback):
    """Holds one step until a file is there."""

    def __init__(self, step: int, file: Path):
        self._step, self._file = step, file

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        end = time.monotonic() + _MOST_HELD_SECONDS
        while state.global_step == self._step and not self._file.exists() and time.monotonic() < end:
            time.sleep(0.01)


def held_step(parts: Parts, start: Start, rank: int) -> None:
    """One step of the run in a folder lasts until what happens beside it is over."""
    parts.callbacks.append(_Held(start.fault["step"], Path(start.case) / GO_ON))


class _Slow(TrainerCallback):
    """Takes as long again as ten steps have taken, after each step."""

    def __init__(self) -> None:
        self._began = 0.0

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._began = time.monotonic()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        time.sleep((_SLOWNESS - 1.0) * (time.monotonic() - self._began))


def early_meeting(parts: Parts, start: Start, rank: int) -> None:
    """Ranks meet with a time-out of their own; on the CPU the Trainer's `ddp_timeout` does not reach that far."""
    torch.distributed.init_process_group("gloo", timeout=timedelta(seconds=start.timeout_seconds))


def slow_rank(parts: Parts, start: Start, rank: int) -> None:
    """One rank needs ten times as long for every step."""
    if rank == start.fault["rank"]:
        parts.callbacks.append(_Slow())


class _Leap(TrainerCallback):
    """Sets the clock at a step."""

    def __init__(self, step: int, seconds: float):
        self._step, self._seconds, self._real = step, seconds, time.time

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == self._step:
            time.time = lambda: self._real() + self._seconds


def leaping_clock(parts: Parts, start: Start, rank: int) -> None:
    """The clock of one rank, or of all, is set forth or back."""
    if start.fault["rank"] in (rank, None):
        parts.callbacks.append(_Leap(start.fault["step"], start.fault["seconds"]))


_CODE = 3


class _Leaves(TrainerCallback):
    """Ends its rank after a step."""

    def __init__(self, step: int, rank: int, by: str):
        self._step, self._rank, self._by = step, rank, by

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step != self._step:
            return
        if self._by == "os-exit":
            os._exit(_CODE)
        kinds = {"error": LookupError, "system-exit": SystemExit, "interrupt": KeyboardInterrupt}
        raise kinds[self._by](f"rank {self._rank} left")


def leaves(parts: Parts, start: Start, rank: int) -> None:
    """One rank ends after a step."""
    if rank == start.fault["rank"]:
        parts.callbacks.append(_Leaves(start.fault["step"], rank, start.fault["by"]))


def cannot_begin(parts: Parts, start: Start, rank: int) -> None:
    """The trainer of one rank cannot be made."""
    if rank == start.fault["rank"]:
        parts.batch_size = 0
