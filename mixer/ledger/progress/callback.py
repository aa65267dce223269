"""The callback that follows the progress of a run, for bars and printed logs."""

import time
from collections.abc import Callable
from typing import Any

from transformers import TrainerCallback

from mixer.ledger.progress.line import RemainingTime, coverage_text
from mixer.mixture.controller import Mixing
from mixer.utils.text import clock_text, duration_text


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
        times = f"{elapsed}<{duration_text(self.remaining.seconds)}"
        done = clock_text(clock.done, clock.budget.limits)
        return f"{done} [{times}] batch {clock.batch_size:,}, {coverage_text(mixing)}"
