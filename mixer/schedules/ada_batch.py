"""AdaBatch: sizes that are multiplied at fixed points of the run."""

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Annotated

from mixer.schedules.base import BatchDecision, BatchObservation, LearningRateRule, ScheduleWithOptions
from mixer.schedules.limits import LARGEST, check_above
from mixer.schedules.shared.position import Unit, check_points, position
from mixer.utils.errors import wrong_value


@dataclass(eq=False, repr=False)
class AdaBatch(ScheduleWithOptions):
    """Multiplies the size at fixed points: `b = initial · factor^k` after k of them.

    AdaBatch (Devarakonda et al. 2017, arXiv:1712.02029) grows the batch while the learning rate decays, so that the
    ratio of learning rate to batch size decays as with a fixed batch: instead of the learning rate times 0.375, twice
    the batch and the learning rate times 0.75. With `learning_rate="linear"`, the default, that holds for any decay of
    the run's own schedule.

    The bounds (`initial`, `minimum`, `maximum`, `granularity`, `max_growth`) are those of `Schedule`.

    Args:
        points: Points of multiplication: positions above 0, ascending.
        every: Distance between points, as an alternative.
        unit: Unit of the positions: `"epochs"`, `"steps"`, `"samples"`, `"tokens"`, `"labels"` or `"progress"`.
        factor: Factor at each point, above 1.
        learning_rate: How the learning rate follows the size; see `Schedule`.

    Raises:
        ValueError: Unless exactly one of `points` and `every` is set, or if a value is outside its range.

    Example:
        >>> schedule = AdaBatch(every=20, initial=128, maximum=2048)
    """

    positions = ("points", "every")

    points: Sequence[float] | None = None
    _: KW_ONLY
    every: float | None = None
    unit: Unit = "epochs"
    factor: Annotated[float, check_above, 1] = 2.0
    learning_rate: LearningRateRule = "linear"

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.points is None) == (self.every is None):
            raise wrong_value(
                "points", f"Give points or every, one of them, got points={self.points} and every={self.every}."
            )
        if self.every is not None and not 0.0 < self.every < math.inf:
            raise wrong_value("every", f"must be a number of {self.unit} above 0, got {self.every}.")
        self._points = [] if self.points is None else check_points(self.points, self.unit)

    def update(self, observation: BatchObservation) -> BatchDecision:
        """Counts the passed points; see `Schedule.update`."""
        at = position(observation, self.unit)
        # Three times 0.1 is above 0.3 in floats: an interval that ends here up to rounding counts.
        num_passed = bisect_right(self._points, at) if self.every is None else math.floor(at / self.every + 1e-9)
        # At most the factors from one sample to the largest size, as the power could overflow.
        num_factors = min(num_passed, math.ceil(math.log(LARGEST) / math.log(self.factor)))
        return BatchDecision(self.limits.clamp(self._initial * self.factor**num_factors))
