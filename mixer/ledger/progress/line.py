"""Text beside a progress bar: data clock, remaining time, coverage."""

import math
import time
from collections.abc import Callable
from math import isnan
from typing import Any

from transformers import TrainerCallback

from mixer.mixture.controller import Mixing
from mixer.utils.text import clock_text, duration_text

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
        self._trained = 0.0  # total seconds of training
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
            self._trained += seconds
            kept = math.exp(-seconds / max(_LEAST_MEMORY_SECONDS, _SHARE_REMEMBERED * self._trained))
            self._done = self._done * kept + progress - self._progress
            self._took = self._took * kept + seconds
        self._progress, self._now = progress, now

    def pause(self, now: float) -> None:
        """Counts the time since the last call as a pause; `now` is in seconds by the same clock."""
        if self._start is not None:
            self._paused += max(0.0, now - self._now)
            self._now, self._paused_at = now, self._progress

    @property
    def trained_seconds(self) -> float:
        """Total seconds of training, without pauses."""
        return self._trained

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


class ProgressLine(TrainerCallback):
    """Progress text with the remaining time, which it estimates from the steps and pauses of the run.

    Args:
        mixing: Returns the controller of the current run.
    """

    def __init__(self, mixing: Callable[[], Mixing]):
        self._mixing = mixing
        self.remaining = RemainingTime()
        self._counted: tuple[int, float] | None = None  # samples and seconds of training at the last look at the speed

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Starts or resumes a run."""
        self.remaining, self._counted = RemainingTime(), None

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Records a step."""
        self.remaining.advance(self.share, time.monotonic())
        if self._counted is None:
            self._counted = self._mixing().clock.num_samples, 0.0

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Counts the time of an evaluation as a pause."""
        self.remaining.pause(time.monotonic())

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Counts the time of a checkpoint as a pause."""
        self.remaining.pause(time.monotonic())

    def samples_per_second(self) -> float | None:
        """Returns the speed since the last call, pauses left out; `None` while it is unknown."""
        now = self._mixing().clock.num_samples, self.remaining.trained_seconds
        before, self._counted = self._counted, now
        if before is None or now[1] <= before[1]:
            return None
        return (now[0] - before[0]) / (now[1] - before[1])

    @property
    def share(self) -> float:
        """Completed fraction of the run."""
        return self._mixing().clock.progress

    def text(self, elapsed: str) -> str:
        """Returns the text: clock, times, batch size and coverage; `elapsed` is the formatted elapsed time."""
        mixing = self._mixing()
        clock = mixing.clock
        done = {"epochs": clock.epoch, "samples": clock.num_samples, "tokens": clock.num_tokens, "steps": clock.step}
        budget = {name: value for name, value in vars(clock.budget).items() if value is not None}
        times = f"{elapsed}<{duration_text(self.remaining.seconds)}"
        return f"{clock_text(done, budget)} [{times}] batch {clock.batch_size:,}, {coverage_text(mixing)}"


def coverage_text(mixing: Mixing) -> str:
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
