"""A linear ramp of the batch size."""

import math
from dataclasses import KW_ONLY, dataclass

from mixer.schedules.base import BatchDecision, BatchObservation, ScheduleWithOptions
from mixer.schedules.shared.position import Unit, position
from mixer.utils.errors import require


@dataclass(eq=False, repr=False)
class Ramp(ScheduleWithOptions):
    """Changes the size linearly from `initial` to `final`, in multiples of the granularity, and then keeps it.

    DeepSeek-V2 (arXiv:2405.04434, sec. 3.1.2) was trained so, from 2304 to 9216 sequences over the first 225 billion
    tokens, and DeepSeek-V3 (arXiv:2412.19437, sec. 4.2), from 3072 to 15360 over 469 billion.

    The bounds (`initial`, `minimum`, `maximum`, `granularity`, `max_growth`) are those of `Schedule`.

    Args:
        final: Size at the end of the ramp; below `initial` for a ramp down.
        over: Length of the ramp in the unit.
        unit: Unit of the length: `"tokens"`, `"labels"`, `"samples"`, `"steps"`, `"epochs"` or `"progress"`.
        learning_rate: How the learning rate follows the size; see `Schedule`.

    Raises:
        ValueError: If the final size is outside the bounds, or a value outside its range.
        TypeError: If a size is no whole number.

    Example:
        >>> schedule = Ramp(9216, 225e9, initial=2304, granularity=256)
    """

    positions = ("over",)

    final: int
    over: float
    _: KW_ONLY
    unit: Unit = "tokens"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.limits.check_size("final", self.final)
        require(0.0 < self.over < math.inf, "over", f"a number of {self.unit} above 0", self.over)

    def update(self, observation: BatchObservation) -> BatchDecision:
        """Returns the size at the present position; see `Schedule.update`."""
        share = min(position(observation, self.unit) / self.over, 1.0)
        return BatchDecision(self._initial + (self.final - self._initial) * share)
