"""What stands beside a progress bar: the data clock, how long it still takes, and what the streams have covered."""

import time
from collections.abc import Callable
from math import isnan

from mixer.ledger.progress.remaining_time import RemainingTime
from mixer.mixture.controller import Mixing
from mixer.utils.clock_text import clock_text, duration_text

_MAX_NAMES = 4


class ProgressLine:
    """What a bar says beside its share, and how long the run still takes.

    Args:
        mixing: Gives the controller of the present run.
    """

    def __init__(self, mixing: Callable[[], Mixing]):
        self._mixing = mixing
        self._remaining = RemainingTime()

    def begin(self) -> None:
        """Begins a run, or its continuation."""
        self._remaining = RemainingTime()

    def advance(self) -> None:
        """Takes in a step."""
        self._remaining.advance(self.share, time.monotonic())

    def pause(self) -> None:
        """Takes in that an evaluation or a checkpoint is done."""
        self._remaining.pause(time.monotonic())

    @property
    def share(self) -> float:
        """Share of the run that is done."""
        return self._mixing().clock.progress

    def text(self, elapsed: str) -> str:
        """Writes the line.

        Args:
            elapsed: How long the run has taken.

        Returns:
            The clock, the times, the batch size and the coverage.
        """
        mixing = self._mixing()
        clock = mixing.clock
        done = {"epochs": clock.epoch, "samples": clock.num_samples, "tokens": clock.num_tokens, "steps": clock.step}
        budget = {name: value for name, value in vars(clock.budget).items() if value is not None}
        times = f"{elapsed}<{duration_text(self._remaining.seconds)}"
        return f"{clock_text(done, budget)} [{times}] batch {clock.batch_size:,}, {coverage_text(mixing)}"


def coverage_text(mixing: Mixing) -> str:
    """Writes the streams' coverage on part of a line.

    Args:
        mixing: The controller.

    Returns:
        Each stream's coverage in per cent (its rows, where nobody knows how many it has), or the least and the most of
        many streams.
    """
    if len(mixing.names) <= _MAX_NAMES:
        seen = zip(mixing.coverage.items(), mixing.seen.tolist(), strict=True)
        parts = (f"{name} {count:,} rows" if isnan(share) else f"{name} {share:.0%}" for (name, share), count in seen)
        return "coverage " + " ".join(parts)
    coverage = {name: share for name, share in mixing.coverage.items() if not isnan(share)}
    if not coverage:
        return f"{int(mixing.seen.sum()):,} rows"
    least, most = min(coverage, key=lambda n: coverage[n]), max(coverage, key=lambda n: coverage[n])
    return f"coverage {least} {coverage[least]:.0%} … {most} {coverage[most]:.0%}"
