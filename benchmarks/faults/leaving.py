"""Ranks that end by themselves while the others go on."""

import os
from typing import Any

from transformers import TrainerCallback

from benchmarks.faults.run import Parts, Start

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
