"""One fault: where it takes place, what was drawn for it, and what became of it."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.faults.kinds import Kind
from benchmarks.faults.notes import Instant
from benchmarks.faults.ranks import End, Ranks
from benchmarks.faults.run import Start


class MissedError(RuntimeError):
    """The fault was not injected: the run had ended before, or nothing was there to damage."""


@dataclass(frozen=True)
class Case:
    """One fault.

    Args:
        kind: Its kind.
        num_ranks: Number of ranks.
        number: Which one of its kind.
        fault: What was drawn for it; what shows later is added.
        folder: Where it takes place.
        cut_short: The folder of an undisturbed run that was cut short, to resume.
    """

    kind: Kind
    num_ranks: int
    number: int
    fault: dict[str, Any]
    folder: Path
    cut_short: Path

    @property
    def start(self) -> Start:
        """The start that is disturbed."""
        kind = self.kind
        return Start(str(self.folder), kind.inside, self.fault, None, kind.num_workers, kind.timeout_seconds)

    @property
    def instant(self) -> Instant:
        """The instant of the fault."""
        return Instant(self.fault["step"], self.fault.get("delay", 0.0))

    def train(self) -> End:
        """Trains with a fault inside of the ranks."""
        return Ranks(self.start, self.num_ranks, by_hand=self.kind.by_hand).wait(self.kind.limit_seconds)

    def resume(self) -> End:
        """Goes on without the fault, from the newest checkpoint or anew."""
        with_workers = Start(str(self.folder), resume="newest", num_workers=self.kind.num_workers)
        return Ranks(with_workers, self.num_ranks).wait(self.kind.limit_seconds)


@dataclass
class Outcome:
    """What became of a fault.

    Args:
        kind: The kind of fault.
        num_ranks: Number of ranks.
        number: Which one of its kind.
        fault: What was drawn.
        broken: What of the promise was not kept; empty if it was.
        has_survived: Whether the run came to its end, resumed where that is promised.
        is_equal: Whether it ended as the undisturbed one to the bit; `None` if it did not come to its end.
        lost: What was lost.
        steps_again: Steps that were done again after resuming.
        seconds: From the fault until all ranks had ended.
        was_injected: Whether there was a fault at all.
    """

    kind: str
    num_ranks: int
    number: int
    fault: dict[str, Any]
    broken: list[str] = field(default_factory=list)
    has_survived: bool = False
    is_equal: bool | None = None
    lost: str = ""
    steps_again: int = 0
    seconds: float = 0.0
    was_injected: bool = True
