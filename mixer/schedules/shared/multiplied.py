"""The common part of schedules that multiply the size, again and again."""

from collections.abc import Mapping
from typing import Any, Literal, get_args

from mixer.schedules.base import BatchDecision, BatchObservation, Schedule

DecisionUnit = Literal["steps", "epochs"]


class MultipliedSchedule(Schedule):
    """A schedule that multiplies the size by factors and keeps the fraction that rounding takes away.

    Without it 4 samples times 1.1 would be 4 for ever. It decides every `interval` steps or epochs, by its `unit`.
    """

    def start(self, initial: int) -> BatchDecision:
        """Begins with a whole size; see `Schedule.start`."""
        self._size = float(initial)
        self._decided_at = 0
        return super().start(initial)

    def _decide_by(self, interval: int, unit: DecisionUnit) -> None:
        if unit not in get_args(DecisionUnit):
            raise ValueError(f"unit must be 'steps' or 'epochs', got {unit!r}.")
        if isinstance(interval, bool) or not isinstance(interval, int) or interval < 1:
            raise ValueError(f"interval must be at least 1 of the {unit}, got {interval!r}; it counts whole ones.")
        self.interval, self.unit = interval, unit

    def _is_due(self, observation: BatchObservation) -> bool:
        at = observation.step if self.unit == "steps" else observation.num_epochs_done
        if at - self._decided_at < self.interval:
            return False
        self._decided_at = at
        return True

    def _multiply(self, factor: float, observation: BatchObservation) -> BatchDecision:
        # Where more than rounding lies between what was asked for and what ruled (a bound on growth, or of the ranks,
        # or a size set by hand), go on from what ruled: it would wind up until the bound is far away.
        if abs(self._size - observation.batch_size) > self.limits.granularity / 2:
            self._size = float(observation.batch_size)
        self._size = self.limits.clamp(self._size * factor)
        return BatchDecision(self._size)

    def state_dict(self) -> dict[str, Any]:
        """Gives the size with its fraction and the last decision's place too; see `Schedule.state_dict`."""
        return {**super().state_dict(), "size": self._size, "decided_at": self._decided_at}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes up the size and the last decision's place too; see `Schedule.load_state_dict`."""
        super().load_state_dict(state)
        self._size, self._decided_at = float(state["size"]), int(state["decided_at"])
