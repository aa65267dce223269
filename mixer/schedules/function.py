"""A schedule from a plain function."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from mixer.schedules.base import BatchDecision, BatchObservation, ScheduleWithOptions
from mixer.utils.errors import InvalidTypeError, InvalidValueError, wrong_type
from mixer.utils.validation import check_takes

SizeFunction = Callable[[int, int], int]


@dataclass(eq=False, repr=False)
class Function(ScheduleWithOptions):
    """Calls a user's function before every step: `f(step, batch_size) -> int`.

    The bounds (`initial`, `minimum`, `maximum`, `granularity`, `max_growth`) are those of `Schedule`.

    Args:
        function: Takes the number of completed steps and the last size (at step 0 the initial one), and returns a whole
            number of samples over all ranks, 1 or more.
        learning_rate: How the learning rate follows the size; see `Schedule`.

    Raises:
        TypeError: If it is not callable with these arguments; during the run, if it returns no number: the error names
            the step.
        ValueError: During the run, if it returns no whole number, or less than 1. The error names the step.
    """

    is_exact = True

    function: SizeFunction

    def __post_init__(self) -> None:
        super().__post_init__()
        if not callable(self.function):
            raise wrong_type(
                "function", f"must be callable as f(step, batch_size), got {type(self.function).__name__}."
            )
        check_takes(self.function, ("step", "batch_size"), "batch_size")
        self._first: tuple[int, BatchDecision] | None = None

    def start(self, initial: int) -> BatchDecision:
        """Calls the function for step 0; see `Schedule.start`."""
        super().start(initial)
        # A run is planned when its trainer is built and again when it starts: one call, unless the size changes.
        if self._first is None or self._first[0] != initial:
            self._first = (initial, self._call(0, initial))
        return self._first[1]

    def update(self, observation: BatchObservation) -> BatchDecision:
        """Calls the function for the next step, unless the run is over; see `Schedule.update`."""
        if observation.progress >= 1.0:
            return BatchDecision(observation.batch_size)
        self._first = None
        return self._call(observation.step, observation.batch_size)

    def _call(self, step: int, batch_size: int) -> BatchDecision:
        try:
            size = self.function(step, batch_size)
        except Exception as error:
            error.add_note(f"The batch-size function raised this at step {step}, given batch_size={batch_size}.")
            raise
        return BatchDecision(_whole(size, step))


def _whole(size: object, step: int) -> int:
    expected = f"batch-size function at step {step}: expected a whole number of samples, 1 or more"
    if isinstance(size, bool) or not isinstance(size, int | float | np.integer | np.floating):
        raise InvalidTypeError(f"{expected}, got {size!r}, a {type(size).__name__}.", option="batch_size", found=size)
    if not math.isfinite(size) or size != math.floor(size) or size < 1:
        raise InvalidValueError(f"{expected}, got {size!r}; round it with max(1, round(...)).", option="batch_size")
    return int(size)
