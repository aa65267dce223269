"""Faults that work inside of the ranks: each changes the parts of the run before the trainer is built."""

import errno
import os
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import TrainerCallback

from benchmarks.crash_run import NotingTrainer
from benchmarks.faults.run import MARK, Parts, Rows, Start
from mixer.policies import Decision
from mixer.schedules import BatchDecision
from mixer.table import Table
from replay import ReplayBuffer

STREAM = "a"  # the one that is disturbed
READ = "read.txt"  # which samples of it were read
FILLER = "filler"
GO_ON = "go-on.txt"
SLOWNESS = 10.0
_LONG = 10
_LONG_SECONDS = 4.0
_MOST_HELD_SECONDS = 45.0


class _Steps(TrainerCallback):
    """Knows how many updates are done."""

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
    parts.options["on_sample_error"] = "skip"
    parts.streams["memory"] = ReplayBuffer(16)  # one that keeps something of each sample cannot do without any


def empty_sample(parts: Parts, start: Start, rank: int) -> None:
    """One sample has no tokens."""
    wanted = start.fault["index"]
    parts.streams[STREAM].change = lambda index, row: {k: v[:0] for k, v in row.items()} if index == wanted else row


def long_sample(parts: Parts, start: Start, rank: int) -> None:
    """One sample is ten times as long as all others."""
    wanted = start.fault["index"]
    parts.streams[STREAM].change = lambda index, row: {k: v.repeat(_LONG) for k, v in row.items()} if index == wanted else row


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
    """The loss of one sample is not a finite number."""
    wanted, is_nan = start.fault["index"], start.fault["value"] == "nan"
    parts.options["nonfinite"] = start.fault["nonfinite"]
    marked: list[Tensor] = []

    def give(index: int, row: dict[str, Tensor]) -> Any:
        return {**row, "input_ids": torch.full_like(row["input_ids"], MARK)} if index == wanted else row

    def before(module: nn.Module, args: Any, given: dict[str, Any]) -> None:
        marked[:] = [(given["input_ids"] == MARK).any(1)]

    def after(module: nn.Module, args: Any, logits: Tensor) -> Tensor:
        worse = torch.full_like(logits, torch.nan if is_nan else -torch.inf)
        if not is_nan:
            worse[..., MARK] = 0.0  # what no label is: each that is asked for is impossible, and its loss infinite
        return torch.where(marked[0][:, None, None], worse, logits)

    parts.streams[STREAM].change = give
    parts.model.register_forward_pre_hook(before, with_kwargs=True)
    parts.model.lm_head.register_forward_hook(after)


def failing_policy(parts: Parts, start: Start, rank: int) -> None:
    """The policy raises at a step."""
    _at_step(parts.mixing, start, lambda decision: _fail("the policy lost its way"))


def nonsense_policy(parts: Parts, start: Start, rank: int) -> None:
    """The policy returns nonsense at a step."""
    nonsense = {
        "nan": np.array([0.5, np.nan, 0.25]),
        "infinite": np.array([0.5, np.inf, 0.25]),
        "negative": np.array([0.9, -0.1, 0.2]),
        "zero": np.zeros(3),
        "too few": np.ones(2),
        "too many": np.ones(5),
        "two-dimensional": np.ones((3, 1)),
    }
    _at_step(parts.mixing, start, lambda decision: Decision(nonsense[start.fault["choice"]]))


def other_policy(parts: Parts, start: Start, rank: int) -> None:
    """The policy decides otherwise on one rank."""
    if rank == start.fault["rank"]:
        _at_step(parts.mixing, start, lambda decision: Decision(np.roll(decision.weights, 1) + 0.125))


def failing_schedule(parts: Parts, start: Start, rank: int) -> None:
    """The batch-size schedule raises at a step."""
    _at_step(parts.batch_size, start, lambda decision: _fail("the schedule lost its way"))


def nonsense_schedule(parts: Parts, start: Start, rank: int) -> None:
    """The batch-size schedule returns nonsense at a step."""
    nonsense = {"nan": np.nan, "infinite": np.inf, "negative": -8, "zero": 0, "text": "many", "nothing": None}
    _at_step(parts.batch_size, start, lambda decision: BatchDecision(nonsense[start.fault["choice"]]))  # type: ignore[arg-type]


def _at_step(control: Any, start: Start, decide: Callable[[Any], Any]) -> None:
    update, step = control.update, start.fault["step"]

    def updated(observation: Any) -> Any:
        decision = update(observation)
        return decide(decision) if observation.step == step else decision

    control.update = updated


def _fail(message: str) -> Any:
    raise ArithmeticError(message)


class _Long(TrainerCallback):
    """Makes one update a long one."""

    def __init__(self, step: int):
        self._step = step

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        end = time.monotonic() + _LONG_SECONDS
        while state.global_step == self._step and time.monotonic() < end:
            time.sleep(0.01)


def long_update(parts: Parts, start: Start, rank: int) -> None:
    """One update takes some seconds on all ranks."""
    parts.callbacks.append(_Long(start.fault["step"]))


class _Held(TrainerCallback):
    """Holds one update until a file is there."""

    def __init__(self, step: int, file: Path):
        self._step, self._file = step, file

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        end = time.monotonic() + _MOST_HELD_SECONDS
        while state.global_step == self._step and not self._file.exists() and time.monotonic() < end:
            time.sleep(0.01)


def held_update(parts: Parts, start: Start, rank: int) -> None:
    """One update of the run in a folder lasts until what happens beside it is over."""
    parts.callbacks.append(_Held(start.fault["step"], Path(start.case) / GO_ON))


class _Slow(TrainerCallback):
    """Takes as long again as ten updates have taken, after each update."""

    def __init__(self) -> None:
        self._began = 0.0

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._began = time.monotonic()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        time.sleep((SLOWNESS - 1.0) * (time.monotonic() - self._began))


def early_meeting(parts: Parts, start: Start, rank: int) -> None:
    """Ranks meet with a time-out of their own; on the CPU the Trainer's `ddp_timeout` does not reach that far."""
    torch.distributed.init_process_group("gloo", timeout=timedelta(seconds=start.timeout_seconds))


def slow_rank(parts: Parts, start: Start, rank: int) -> None:
    """One rank needs ten times as long for every update."""
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


def full_disk(parts: Parts, start: Start, rank: int) -> None:
    """The disk is full, but for some bytes, just before something is written."""
    owner, name = WRITERS[start.fault["what"]]
    write, calls = getattr(owner, name), [0]

    def writes(*args: Any, **kwargs: Any) -> Any:
        calls[0] += 1
        if calls[0] == start.fault["call"]:
            _fill(start.output.parent, start.fault["left"])
        return write(*args, **kwargs)

    if rank == 0:
        setattr(owner, name, writes)


def _fill(disk: Path, num_bytes_left: int) -> None:
    free = os.statvfs(disk)
    with (disk / FILLER).open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, max(free.f_bavail * free.f_frsize - num_bytes_left, 1))


# What writes: a checkpoint as a whole, the ledger's tables, a buffer's state.
WRITERS: dict[str, tuple[type, str]] = {
    "checkpoint": (NotingTrainer, "_save_checkpoint"),
    "ledger": (Table, "flush"),
    "buffer": (ReplayBuffer, "save"),
}

INSIDE: dict[str, Callable[[Parts, Start, int], None]] = {
    function.__name__: function
    for function in (
        note_reads,
        failing_sample,
        skipped_sample,
        empty_sample,
        long_sample,
        shrinking_data,
        growing_data,
        other_length,
        bad_loss,
        failing_policy,
        nonsense_policy,
        other_policy,
        failing_schedule,
        nonsense_schedule,
        early_meeting,
        long_update,
        held_update,
        slow_rank,
        leaping_clock,
        full_disk,
    )
}
