"""What runs note of themselves, and how the ends of two of them are compared."""

import os
import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import default_data_collator

from mixer import MixingTrainer

EVENTS, END = "events.txt", "end.pt"
_MASK_SHARE = 0.05
_TIMINGS = ("runtime", "per_second")


def masked(samples: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Collates, and masks random tokens.

    Args:
        samples: The samples.

    Returns:
        The batch.
    """
    batch: dict[str, Tensor] = default_data_collator(samples)
    batch["input_ids"] = torch.where(torch.rand(batch["input_ids"].shape) < _MASK_SHARE, 0, batch["input_ids"])
    return batch


class Events:
    """Notes of the main process, each on the disk's side of the process at once, so that a kill does not lose it.

    Args:
        folder: Where they are kept.
    """

    def __init__(self, folder: Path):
        folder.mkdir(parents=True, exist_ok=True)
        self._descriptor = os.open(folder / EVENTS, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def note(self, kind: str, step: int) -> None:
        """Notes an event.

        Args:
            kind: What happened.
            step: The step after which it did.
        """
        os.write(self._descriptor, f"{kind} {step} {time.time()}\n".encode())


class NotingTrainer(MixingTrainer):
    """Notes when it writes a checkpoint."""

    events: Events | None = None

    def _save_checkpoint(self, *args: Any, **kwargs: Any) -> None:
        if self.events is not None:
            self.events.note("writes", self.state.global_step)
        super()._save_checkpoint(*args, **kwargs)
        if self.events is not None:
            self.events.note("written", self.state.global_step)


class Event(NamedTuple):
    """A note of the run.

    Args:
        kind: `begin` of training, end of a `step`, a checkpoint `writes` or `written`.
        step: The step after which it came.
        time: Seconds.
    """

    kind: str
    step: int
    time: float


class Instant(NamedTuple):
    """When a run is disturbed.

    Args:
        step: After which step,
        delay: and how many seconds later.
    """

    step: int
    delay: float


def read_events(folder: Path, offset: int = 0) -> list[Event]:
    """Reads the notes of a run.

    Args:
        folder: The run's folder.
        offset: Where in the file to begin.

    Returns:
        The events.
    """
    path = folder / EVENTS
    if not path.is_file():
        return []
    with path.open("rb") as file:
        file.seek(offset)
        lines = file.read().decode().splitlines()
    return [Event(kind, int(step), float(at)) for kind, step, at in (line.split() for line in lines)]


def draw_instant(events: Sequence[Event], seed: int) -> Instant:
    """Draws an instant evenly over the time of an undisturbed run.

    Args:
        events: Its events.
        seed: Seed of the draw.

    Returns:
        The instant.
    """
    marks = [event for event in events if event.kind in ("begin", "step")]
    at = random.Random(seed).uniform(marks[0].time, events[-1].time)
    before = max((mark for mark in marks if mark.time <= at), key=lambda mark: mark.time)
    return Instant(before.step, at - before.time)


def compare_ends(first: dict[str, Any], second: dict[str, Any]) -> dict[str, bool]:
    """Compares what two runs ended with, the log's timings left out.

    Args:
        first: `weights`, `optimizer` and `logs` of the one.
        second: Those of the other.

    Returns:
        Whether each is the same to the bit.
    """
    logs = [
        [{key: value for key, value in entry.items() if not key.endswith(_TIMINGS)} for entry in end["logs"]]
        for end in (first, second)
    ]
    return {
        **{part: _are_equal(first[part], second[part]) for part in ("weights", "optimizer")},
        "logs": logs[0] == logs[1],
    }


def _are_equal(first: Any, second: Any) -> bool:
    if isinstance(first, dict):
        return first.keys() == second.keys() and all(_are_equal(first[key], second[key]) for key in first)
    return torch.equal(torch.as_tensor(first), torch.as_tensor(second))
