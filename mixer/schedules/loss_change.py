"""Less while the loss stands still, more while it moves."""

import math
from collections.abc import Mapping
from itertools import pairwise
from typing import Any, Unpack

from mixer.schedules.base import BatchDecision, BatchObservation, Bounds, LearningRateRule
from mixer.schedules.multiplied import MultipliedSchedule


class LossChange(MultipliedSchedule):
    """Shrinks the size when the loss stands still and grows it otherwise, at every update.

    With `c = mean |L_i − L_{i−1}|` over the last `window` losses, which are `window` − 1 differences, the size is
    multiplied by `shrink` if c < `threshold` and by `growth` if not. Until there are so many losses it holds. The rule
    and its defaults are as published; the published one gives fractions of samples, which are kept here between updates
    while whole samples rule.

    Known to be weak: the threshold is in units of the loss, so that it means another thing for each task and each
    phase; the losses of single batches differ by their noise, mostly by more than the threshold, so that the size grows
    to the maximum; and where the loss does stand still the batch shrinks, so that the run never anneals. See
    `SmoothedLossChange`.

    Args:
        window: Number of losses to look at, 2 or more.
        threshold: Mean change below which the loss stands still, in units of the loss.
        shrink: Factor where it does, in (0, 1].
        growth: Factor where it does not, 1 or more.
        maximum: Largest size: the rule has no other end.
        learning_rate: How the learning rate follows the size; see `Schedule`.
        **bounds: See `Schedule`.

    Raises:
        ValueError: If a value is outside its range.
    """

    needs = frozenset({"loss"})

    def __init__(
        self,
        window: int = 5,
        threshold: float = 0.01,
        shrink: float = 0.5,
        growth: float = 1.1,
        *,
        maximum: int,
        learning_rate: LearningRateRule = "none",
        **bounds: Unpack[Bounds],
    ):
        super().__init__(maximum=maximum, learning_rate=learning_rate, **bounds)
        if isinstance(window, bool) or not isinstance(window, int):
            raise TypeError(f"window must be a whole number of losses, got {window!r}.")
        if window < 2:
            raise ValueError(f"window must be at least 2 losses, between which there is a change, got {window}.")
        if not 0.0 <= threshold < math.inf:
            raise ValueError(f"threshold must be a change of 0 or more, got {threshold}.")
        if not 0.0 < shrink <= 1.0 <= growth < math.inf:
            raise ValueError(f"0 < shrink <= 1 <= growth must hold, got {shrink} and {growth}.")
        self.window = window
        self.threshold = threshold
        self.shrink, self.growth = shrink, growth

    def start(self, initial: int) -> BatchDecision:
        """Forgets all losses; see `Schedule.start`."""
        self._losses: list[float] = []
        return super().start(initial)

    def update(self, observation: BatchObservation) -> BatchDecision:
        """Decides by the last losses; see `Schedule.update`."""
        if not math.isfinite(observation.loss):
            return self._multiply(1.0, observation)
        self._losses = [*self._losses, observation.loss][-self.window :]
        if len(self._losses) < self.window:
            return self._multiply(1.0, observation)
        changes = [abs(after - before) for before, after in pairwise(self._losses)]
        stands_still = sum(changes) / len(changes) < self.threshold
        return self._multiply(self.shrink if stands_still else self.growth, observation)

    def state_dict(self) -> dict[str, Any]:
        """Gives the last losses too; see `Schedule.state_dict`."""
        return {**super().state_dict(), "losses": list(self._losses)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes up the last losses too; see `Schedule.load_state_dict`."""
        super().load_state_dict(state)
        self._losses = [float(loss) for loss in state["losses"]]
