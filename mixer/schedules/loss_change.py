"""Less while the loss stands still, more while it moves."""

import math
from collections.abc import Mapping
from itertools import pairwise
from typing import Any, Unpack

from mixer.schedules.base import BatchDecision, BatchObservation, Bounds, LearningRateRule
from mixer.schedules.shared.multiplied import DecisionUnit, MultipliedSchedule


class LossChange(MultipliedSchedule):
    """Shrinks the size when the loss stands still and grows it otherwise, every few epochs or steps.

    A decision takes the mean loss of the steps since the last one (of steps alike, whatever their size) as its
    newest loss. With `c = mean |L_i − L_{i−1}|` over the last `window` of those, which are `window` − 1 differences,
    the size is multiplied by `shrink` if c < `threshold` and by `growth` if not; by `growth` too while there are fewer
    losses. Between decisions it holds, and where no loss was finite since the last one. The rule and its numbers are as
    published, where it decides at the end of every second or third epoch; the published one gives fractions of samples,
    which are kept here while whole samples rule. `unit="steps", interval=1` decides at every step.

    Known to be weak: the threshold is in units of the loss, so that it means another thing for each task and each
    phase; the losses of single batches differ by their noise, mostly by more than the threshold, so that by steps the
    size grows to the maximum; a run of a few epochs sees few decisions by epochs; and where the loss does stand still
    the batch shrinks, so that the run never anneals. See `SmoothedLossChange`.

    Args:
        window: Number of losses to look at, 2 or more.
        threshold: Mean change below which the loss stands still, in units of the loss.
        shrink: Factor where it does, in (0, 1].
        growth: Factor where it does not, 1 or more.
        interval: Number of units from a decision to the next.
        unit: `"epochs"`, at whose ends it decides, or `"steps"`.
        maximum: Largest size: the rule has no other end.
        learning_rate: How the learning rate follows the size; see `Schedule`.
        **bounds: See `Schedule`.

    Raises:
        ValueError: If a value is outside its range.

    Example:
        >>> schedule = LossChange(interval=3, minimum=8, maximum=1024)
    """

    needs = frozenset({"loss"})

    def __init__(
        self,
        window: int = 5,
        threshold: float = 0.01,
        shrink: float = 0.5,
        growth: float = 1.1,
        *,
        interval: int = 2,
        unit: DecisionUnit = "epochs",
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
        self._decide_by(interval, unit)
        self.window = window
        self.threshold = threshold
        self.shrink, self.growth = shrink, growth

    def start(self, initial: int) -> BatchDecision:
        """Forgets all losses; see `Schedule.start`."""
        self._losses: list[float] = []
        self._forget_steps()
        return super().start(initial)

    def _forget_steps(self) -> None:
        self._mean, self._count = 0.0, 0

    def update(self, observation: BatchObservation) -> BatchDecision:
        """Takes the loss in and decides by the last ones when it is time; see `Schedule.update`."""
        if math.isfinite(observation.loss):
            self._count += 1
            # Not a sum: that of finite losses may be infinite.
            self._mean = self._mean * ((self._count - 1) / self._count) + observation.loss / self._count
        return self._multiply(self._decide() if self._is_due(observation) else 1.0, observation)

    def _decide(self) -> float:
        if not self._count:
            return 1.0
        self._losses = [*self._losses, self._mean][-self.window :]
        self._forget_steps()
        if len(self._losses) < self.window:
            return self.growth
        changes = [abs(after - before) for before, after in pairwise(self._losses)]
        return self.shrink if sum(changes) / len(changes) < self.threshold else self.growth

    def state_dict(self) -> dict[str, Any]:
        """Gives the losses, and the mean of those since the last decision, too; see `Schedule.state_dict`."""
        return {**super().state_dict(), "losses": list(self._losses), "mean": self._mean, "count": self._count}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes up the losses too; see `Schedule.load_state_dict`."""
        super().load_state_dict(state)
        self._losses = [float(loss) for loss in state["losses"]]
        self._mean, self._count = float(state["mean"]), int(state["count"])
