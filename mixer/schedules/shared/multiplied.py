"""Base class of schedules that multiply the size repeatedly."""

from typing import ClassVar, Literal

from mixer.schedules.base import BatchDecision, BatchObservation, ScheduleWithOptions
from mixer.utils.errors import wrong_value

DecisionUnit = Literal["steps", "epochs"]


class MultipliedSchedule(ScheduleWithOptions):
    """Multiplies the size by factors and keeps the fraction that rounding removes.

    Otherwise 4 samples times 1.1 would stay 4 forever. It decides every `interval` steps or epochs, by its `unit`.
    """

    remembered: ClassVar[tuple[str, ...]] = ("_size", "_decided_at")

    interval: int

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.interval, bool) or not isinstance(self.interval, int) or self.interval < 1:
            raise wrong_value("interval", f"must be at least 1 of the {self.unit}, got {self.interval!r}.")

    def start(self, initial: int) -> BatchDecision:
        """Starts with a whole size; see `Schedule.start`."""
        self._size = float(initial)
        self._decided_at = 0
        return super().start(initial)

    def _is_due(self, observation: BatchObservation) -> bool:
        at = observation.step if self.unit == "steps" else observation.num_epochs_done
        if at - self._decided_at < self.interval:
            return False
        self._decided_at = at
        return True

    def _multiply(self, factor: float, observation: BatchObservation) -> BatchDecision:
        # If the actual size differs from the request by more than rounding (a bound on growth, or of the ranks, or a
        # size set by hand), continue from the actual one: otherwise the request would wind up far beyond the bound.
        if abs(self._size - observation.batch_size) > self.limits.granularity / 2:
            self._size = float(observation.batch_size)
        self._size = float(self.limits.clamp(self._size * factor))  # a bound is an integer
        return BatchDecision(self._size)
