"""SmoothedLossChange: larger batches on a plateau of the smoothed loss."""

import math
from collections.abc import Mapping
from typing import Any, Literal, Unpack

from mixer.schedules.base import BatchDecision, BatchObservation, Bounds, LearningRateRule
from mixer.schedules.shared.average import Trend
from mixer.schedules.shared.multiplied import DecisionUnit, MultipliedSchedule


class SmoothedLossChange(MultipliedSchedule):
    """Multiplies the size on a plateau of the smoothed loss, at intervals.

    The loss is smoothed by a moving average. Each decision compares it with its value at the last one: a plateau is a
    relative change up to `threshold`, whatever the unit of the loss. A loss that rises by more is not on a plateau.

    `on_plateau="grow"`, the default, anneals by growing the batch instead of lowering the learning rate (Smith et al.
    2017, arXiv:1711.00489), so by default the learning rate does not follow the size. `"shrink"` is the direction of
    `LossChange`. The size is constant off plateaus, and if there is nothing to compare: at the first decision, without
    a finite loss since the last one, and while the learning rate rises if `after_warmup` is set.

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
        **bounds: See `Schedule`.

    Raises:
        ValueError: If a value is outside its range.
    """

    needs = frozenset({"loss"})

    def __init__(
        self,
        threshold: float = 0.01,
        decay: float = 0.98,
        interval: int = 100,
        *,
        unit: DecisionUnit = "steps",
        on_plateau: Literal["grow", "shrink"] = "grow",
        factor: float = 1.25,
        otherwise: float = 1.0,
        gradient_norm: bool = False,
        after_warmup: bool = False,
        maximum: int,
        learning_rate: LearningRateRule = "none",
        **bounds: Unpack[Bounds],
    ):
        super().__init__(maximum=maximum, learning_rate=learning_rate, **bounds)
        self._decide_by(interval, unit)
        if on_plateau not in ("grow", "shrink"):
            raise ValueError(f"on_plateau must be 'grow' or 'shrink', got {on_plateau!r}.")
        if not (1.0 <= factor < math.inf and 0.0 < otherwise < math.inf):
            raise ValueError(f"factor must be 1 or more and otherwise above 0, got {factor} and {otherwise}.")
        observed = {"loss": True, "gradient_norm": gradient_norm, "learning_rate": after_warmup}
        self.needs = frozenset(name for name, is_needed in observed.items() if is_needed)
        self.threshold, self.decay, self.otherwise = threshold, decay, otherwise
        self.plateau_factor = factor if on_plateau == "grow" else 1.0 / factor
        self._forget()

    def start(self, initial: int) -> BatchDecision:
        """Discards all observations; see `Schedule.start`."""
        self._forget()
        return super().start(initial)

    def _forget(self) -> None:
        names = sorted(self.needs & {"loss", "gradient_norm"})
        self._trends = {name: Trend(self.decay, self.threshold) for name in names}
        self._learning_rate = 0.0

    def update(self, observation: BatchObservation) -> BatchDecision:
        """Updates the averages and decides when it is due; see `Schedule.update`."""
        for name, trend in self._trends.items():
            trend.take(getattr(observation, name))
        is_rising = "learning_rate" in self.needs and observation.learning_rate > self._learning_rate
        if math.isfinite(observation.learning_rate):
            self._learning_rate = observation.learning_rate
        return self._multiply(self._decide(is_rising) if self._is_due(observation) else 1.0, observation)

    def _decide(self, is_rising: bool) -> float:
        # All are called, whatever the first result: each stores its value at this decision.
        still = [trend.stands_still() for trend in self._trends.values()]
        if is_rising or None in still:
            return 1.0
        return self.plateau_factor if all(still) else self.otherwise

    def state_dict(self) -> dict[str, Any]:
        """Adds the averages; see `Schedule.state_dict`."""
        trends = {name: trend.state_dict() for name, trend in self._trends.items()}
        return {**super().state_dict(), "trends": trends, "learning_rate": self._learning_rate}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Loads the averages too; see `Schedule.load_state_dict`."""
        super().load_state_dict(state)
        if sorted(state["trends"]) != sorted(self._trends):
            raise ValueError(f"{self.name} follows {list(self._trends)}, but the saved state {list(state['trends'])}.")
        for name, trend in self._trends.items():
            trend.load_state_dict(state["trends"][name])
        self._learning_rate = state["learning_rate"]
