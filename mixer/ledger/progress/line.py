"""The remaining time of a run, and the coverage of its streams in words."""

from math import exp, isnan
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # commands that only read import nothing that trains
    from mixer.mixture.controller import Mixing

_LEAST_MEMORY_SECONDS = 30.0
_SHARE_REMEMBERED = 0.1
_MAX_NAMES = 4


class RemainingTime:
    """Estimates the remaining time of a run from its progress, independent of steps and their size.

    The speed is recent progress per second of training: over about the last tenth of the time, at least 30 seconds.
    Pauses for evaluations and checkpoints are counted separately, and expected to recur at the same rate. Only this
    process's part of a resumed run counts.

    Example:
        >>> remaining = RemainingTime()
        >>> for second in range(5):
        ...     remaining.advance(progress=0.01 * second, now=float(second))
        >>> round(remaining.seconds)
        96
    """

    def __init__(self) -> None:
        self._start: float | None = None
        self._progress = self._now = 0.0
        self.trained_seconds = 0.0  # in all, without pauses
        self._done = self._took = 0.0  # recent progress, and its seconds of training
        self._paused, self._paused_at = 0.0, 0.0

    def advance(self, progress: float, now: float) -> None:
        """Records progress.

        Args:
            progress: Completed fraction of the run's budget.
            now: Seconds, by a monotonic clock.
        """
        if self._start is None:
            self._start = progress
        else:
            seconds = max(0.0, now - self._now)
            self.trained_seconds += seconds
            kept = exp(-seconds / max(_LEAST_MEMORY_SECONDS, _SHARE_REMEMBERED * self.trained_seconds))
            self._done = self._done * kept + progress - self._progress
            self._took = self._took * kept + seconds
        self._progress, self._now = progress, now

    def pause(self, now: float) -> None:
        """Counts the time since the last call as a pause; `now` is in seconds by the same clock."""
        if self._start is not None:
            self._paused += max(0.0, now - self._now)
            self._now, self._paused_at = now, self._progress

    @property
    def seconds(self) -> float | None:
        """Remaining seconds; `None` while the speed is unknown."""
        left = 1.0 - self._progress
        if left <= 0.0:
            return 0.0
        if self._start is None or self._done <= 0.0 or self._took <= 0.0:
            return None
        between = self._paused_at - self._start
        pauses = self._paused / between if between > 0.0 else 0.0
        return left * (self._took / self._done + pauses)


def coverage_text(mixing: "Mixing") -> str:
    """Returns the streams' coverage in percent, or rows if their number is unknown; the range for many streams."""
    if len(mixing.names) <= _MAX_NAMES:
        seen = zip(mixing.coverage.items(), mixing.seen.tolist(), strict=True)
        parts = (f"{name} {count:,} rows" if isnan(share) else f"{name} {share:.0%}" for (name, share), count in seen)
        return "coverage " + " ".join(parts)
    coverage = {name: share for name, share in mixing.coverage.items() if not isnan(share)}
    if not coverage:
        return f"{int(mixing.seen.sum()):,} rows"
    least, most = min(coverage, key=lambda n: coverage[n]), max(coverage, key=lambda n: coverage[n])
    return f"coverage {least} {coverage[least]:.0%} … {most} {coverage[most]:.0%}"
