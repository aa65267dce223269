"""More when the smoothed loss stands still."""

import math
from collections.abc import Mapping
from typing import Any, Literal, Unpack

from mixer.schedules.base import BatchDecision, BatchObservation, Bounds, LearningRateRule
from mixer.schedules.shared.average import Trend
from mixer.schedules.shared.multiplied import DecisionUnit, MultipliedSchedule


class SmoothedLossChange(MultipliedSchedule):
    """Multiplies the size when the smoothed loss stands still, once in a while.

    The loss is smoothed by a moving average. At each decision it is compared with what it was at the one before: a
    plateau is a relative change up to `threshold`, whatever the loss is measured in. A loss that rises by more than
    that is none.

    `on_plateau="grow"`, the default, anneals by growing the batch instead of lowering the learning rate (Smith et al.
    2017, arXiv:1711.00489), whence the learning rate does not follow the size unless it is asked to. `"shrink"` is the
    direction of `LossChange`. On no plateau the size holds. So it does where nothing can be compared: at the first
    decision, without a finite loss since the last one, and while the learning rate rises if `after_warmup` is set.

    Args:
        threshold: Relative change up to which it is a plateau.
        decay: Share of the old average that stays at each step, in [0, 1).
        interval: Number of units from a decision to the next.
        unit: `"steps"` or `"epochs"`.
        on_plateau: `"grow"` multiplies the size by the factor, `"shrink"` divides it.
        factor: The factor, 1 or more.
        otherwise: Factor on no plateau, above 0.
        gradient_norm: Whether the smoothed norm of the gradient has to stand still too.
        after_warmup: Whether to wait until the run's own learning rate rises no more.
        maximum: Largest size: the rule has no other end.
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
        """Forgets all observations; see `Schedule.start`."""
        self._forget()
        return super().start(initial)

    def _forget(self) -> None:
        names = sorted(self.needs & {"loss", "gradient_norm"})
        self._trends = {name: Trend(self.decay, self.threshold) for name in names}
        self._learning_rate = 0.0

    def update(self, observation: BatchObservation) -> BatchDecision:
        """Takes the observations into the averages and decides when it is time; see `Schedule.update`."""
        for name, trend in self._trends.items():
            trend.take(getattr(observation, name))
        is_rising = "learning_rate" in self.needs and observation.learning_rate > self._learning_rate
        if math.isfinite(observation.learning_rate):
            self._learning_rate = observation.learning_rate
        return self._multiply(self._decide(is_rising) if self._is_due(observation) else 1.0, observation)

    def _decide(self, is_rising: bool) -> float:
        # All of them are asked, whatever the first one says: each one remembers what it was at this decision.
        still = [trend.stands_still() for trend in self._trends.values()]
        if is_rising or None in still:
            return 1.0
        return self.plateau_factor if all(still) else self.otherwise

    def state_dict(self) -> dict[str, Any]:
        """Gives the averages too; see `Schedule.state_dict`."""
        trends = {name: trend.state_dict() for name, trend in self._trends.items()}
        return {**super().state_dict(), "trends": trends, "learning_rate": self._learning_rate}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes up the averages too; see `Schedule.load_state_dict`."""
        super().load_state_dict(state)
        if sorted(state["trends"]) != sorted(self._trends):
            raise ValueError(f"{self.name} follows {list(self._trends)}, but the saved state {list(state['trends'])}.")
        for name, trend in self._trends.items():
            trend.load_state_dict(state["trends"][name])
        self._learning_rate = state["learning_rate"]
