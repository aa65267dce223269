"""The common part of schedules that multiply the size, again and again."""

from collections.abc import Mapping
from typing import Any

from mixer.schedules.base import BatchDecision, BatchObservation, Schedule


class MultipliedSchedule(Schedule):
    """A schedule that multiplies the size by factors and keeps the fraction that rounding takes away.

    Without it 4 samples times 1.1 would be 4 for ever.
    """

    def start(self, initial: int) -> BatchDecision:
        """Begins with a whole size; see `Schedule.start`."""
        self._size = float(initial)
        return super().start(initial)

    def _multiply(self, factor: float, observation: BatchObservation) -> BatchDecision:
        # Where more than rounding lies between what was asked for and what ruled (a bound on growth, or of the ranks,
        # or a size set by hand), go on from what ruled: it would wind up until the bound is far away.
        if abs(self._size - observation.batch_size) > self.limits.granularity / 2:
            self._size = float(observation.batch_size)
        self._size = self.limits.clamp(self._size * factor)
        return BatchDecision(self._size)

    def state_dict(self) -> dict[str, Any]:
        """Gives the size with its fraction too; see `Schedule.state_dict`."""
        return {**super().state_dict(), "size": self._size}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes up the size too; see `Schedule.load_state_dict`."""
        super().load_state_dict(state)
        self._size = float(state["size"])
