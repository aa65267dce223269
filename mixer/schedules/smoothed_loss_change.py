"""SmoothedLossChange: larger batches on a plateau of the smoothed loss."""

import math
from dataclasses import KW_ONLY, dataclass, field
from typing import Literal

from mixer.measurements import GradientNorm, LearningRate, MeanLoss, Needs, Rates
from mixer.schedules.base import BatchDecision, BatchObservation
from mixer.schedules.shared.average import Trend
from mixer.schedules.shared.multiplied import DecisionUnit, MultipliedSchedule
from mixer.utils.errors import wrong_value

_KINDS = {"gradient_norm": GradientNorm, "loss": MeanLoss}  # what is smoothed


@dataclass(eq=False, repr=False)
class SmoothedLossChange(MultipliedSchedule):
    """Multiplies the size on a plateau of the smoothed loss, at intervals.

    The loss is smoothed by a moving average. Each decision compares it with its value at the last one: a plateau is a
    relative change up to `threshold`, whatever the unit of the loss. A loss that rises by more is not on a plateau.

    `on_plateau="grow"`, the default, anneals by growing the batch instead of lowering the learning rate (Smith et al.
    2017, arXiv:1711.00489), so by default the learning rate does not follow the size. `"shrink"` is the direction of
    `LossChange`. The size is constant off plateaus, and if there is nothing to compare: at the first decision, without
    a finite loss since the last one, and while the learning rate rises if `after_warmup` is set.

    The bounds (`initial`, `minimum`, `maximum`, `granularity`, `max_growth`) are those of `Schedule`.

    Args:
        threshold: Largest relative change of a plateau.
        decay: Share of the old average that stays at each step, in [0, 1).
        interval: Number of units between decisions.
        unit: `"steps"` or `"epochs"`.
        on_plateau: `"grow"` multiplies the size by the factor, `"shrink"` divides it.
        factor: The factor, 1 or more.
        otherwise: Factor off plateaus, above 0.
        gradient_norm: Whether the smoothed gradient norm has to be on a plateau too.
        after_warmup: Whether to wait while the run's own learning rate rises.
        maximum: Largest size: the rule has no other limit.
        learning_rate: How the learning rate follows the size; see `Schedule`.

    Raises:
        ValueError: If a value is outside its range.
    """

    remembered = ("_trends", "_learning_rate")

    needs = Needs((MeanLoss(),))

    threshold: float = 0.01
    decay: float = 0.98
    interval: int = 100
    _: KW_ONLY
    unit: DecisionUnit = "steps"
    on_plateau: Literal["grow", "shrink"] = "grow"
    factor: float = 1.25
    otherwise: float = 1.0
    gradient_norm: bool = False
    after_warmup: bool = False
    maximum: int = field()

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (1.0 <= self.factor < math.inf and 0.0 < self.otherwise < math.inf):
            raise wrong_value(
                "factor", f"must be 1 or more and otherwise above 0, got {self.factor} and {self.otherwise}."
            )
        self.needs += (GradientNorm(),) * self.gradient_norm + (LearningRate(),) * self.after_warmup
        self.plateau_factor = self.factor if self.on_plateau == "grow" else 1.0 / self.factor
        self._forget()

    def start(self, initial: int) -> BatchDecision:
        """Discards all observations; see `Schedule.start`."""
        self._forget()
        return super().start(initial)

    def _forget(self) -> None:
        self._trends = {
            name: Trend(self.decay, self.threshold) for name, kind in _KINDS.items() if kind() in self.needs
        }
        self._learning_rate = 0.0

    def update(self, observation: BatchObservation) -> BatchDecision:
        """Updates the averages and decides when it is due; see `Schedule.update`."""
        for name, trend in self._trends.items():
            trend.take(observation.number(_KINDS[name]))
        rate = (observation[LearningRate] or Rates()).next
        is_rising = self.after_warmup and rate > self._learning_rate
        if math.isfinite(rate):
            self._learning_rate = rate
        return self._multiply(self._decide(is_rising) if self._is_due(observation) else 1.0, observation)

    def _decide(self, is_rising: bool) -> float:
        # All are called, whatever the first result: each stores its value at this decision.
        still = [trend.stands_still() for trend in self._trends.values()]
        if is_rising or None in still:
            return 1.0
        return self.plateau_factor if all(still) else self.otherwise
