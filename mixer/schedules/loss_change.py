"""LossChange: smaller batches on a plateau of the loss, larger ones otherwise."""

import math
from dataclasses import KW_ONLY, dataclass, field
from itertools import pairwise

from mixer.measurements import MeanLoss
from mixer.schedules.base import BatchDecision, BatchObservation
from mixer.schedules.shared.multiplied import DecisionUnit, MultipliedSchedule
from mixer.utils.errors import InvalidValueError, require, wrong_type


@dataclass(eq=False, repr=False)
class LossChange(MultipliedSchedule):
    """Shrinks the size on a plateau of the loss and grows it otherwise, every few epochs or steps.

    Each decision adds the mean loss of the steps since the last one (equally weighted, whatever their size). With `c =
    mean |L_i − L_{i−1}|` over the last `window` of these, that is, `window` − 1 differences, the size is multiplied by
    `shrink` if c < `threshold` and by `growth` otherwise, also while there are fewer losses. The size is constant
    between decisions, and at a decision without a finite loss since the last one. The rule and its numbers are as
    published, with decisions at the end of every second or third epoch; fractional sizes, as in the publication, are
    kept internally and rounded. `unit="steps", interval=1` decides at every step.

    Known weaknesses: the threshold has the unit of the loss, so its meaning differs between tasks and phases; the noise
    of single batches mostly exceeds it, so by steps the size grows to the maximum; a run of few epochs has few
    decisions by epochs; and on an actual plateau the batch shrinks, so the run never anneals. See `SmoothedLossChange`.

    The bounds (`initial`, `minimum`, `maximum`, `granularity`, `max_growth`) are those of `Schedule`.

    Args:
        window: Number of losses, 2 or more.
        threshold: Mean change below which the loss is on a plateau, in units of the loss.
        shrink: Factor on a plateau, in (0, 1].
        growth: Factor otherwise, 1 or more.
        interval: Number of units between decisions.
        unit: `"epochs"`, with decisions at their ends, or `"steps"`.
        maximum: Largest size: the rule has no other limit.
        learning_rate: How the learning rate follows the size; see `Schedule`.

    Raises:
        ValueError: If a value is outside its range.

    Example:
        >>> schedule = LossChange(interval=3, minimum=8, maximum=1024)
    """

    remembered = ("_losses", "_mean", "_count")

    needs = (MeanLoss(),)

    window: int = 5
    threshold: float = 0.01
    shrink: float = 0.5
    growth: float = 1.1
    _: KW_ONLY
    interval: int = 2
    unit: DecisionUnit = "epochs"
    maximum: int = field()

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.window, bool) or not isinstance(self.window, int):
            raise wrong_type("window", f"must be a whole number of losses, got {self.window!r}.")
        require(self.window >= 2, "window", "at least 2 losses to compute a change", self.window)
        require(0.0 <= self.threshold < math.inf, "threshold", "a change of 0 or more", self.threshold)
        if not 0.0 < self.shrink <= 1.0 <= self.growth < math.inf:
            raise InvalidValueError(
                f"0 < shrink <= 1 <= growth must hold, got {self.shrink} and {self.growth}.", option="shrink"
            )

    def start(self, initial: int) -> BatchDecision:
        """Discards all losses; see `Schedule.start`."""
        self._losses: list[float] = []
        self._forget_steps()
        return super().start(initial)

    def _forget_steps(self) -> None:
        self._mean, self._count = 0.0, 0

    def update(self, observation: BatchObservation) -> BatchDecision:
        """Records the loss and decides when it is due; see `Schedule.update`."""
        loss = observation.number(MeanLoss)
        if math.isfinite(loss):
            self._count += 1
            # A running mean, as a sum of finite losses may overflow.
            self._mean = self._mean * ((self._count - 1) / self._count) + loss / self._count
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
