"""A disk that is full just before something is written."""

import os
from pathlib import Path
from typing import Any

from benchmarks.faults.notes import NotingTrainer
from benchmarks.faults.run import Parts, Start
from mixer.ledger.append_table import Table
from replay import ReplayBuffer

FILLER = "filler"

# What writes: a checkpoint as a whole, the ledger's tables, a buffer's state.
WRITERS: dict[str, tuple[type, str]] = {
    "checkpoint": (NotingTrainer, "_save_checkpoint"),
    "ledger": (Table, "flush"),
    "buffer": (ReplayBuffer, "save"),
}


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
