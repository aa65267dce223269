"""A linear ramp of the batch size."""

import math
from typing import Unpack

from mixer.schedules.base import AllBounds, BatchDecision, BatchObservation, LearningRateRule, Schedule
from mixer.schedules.shared.position import Unit, needs_of, position


class Ramp(Schedule):
    """Changes the size linearly from `initial` to `final`, in multiples of the granularity, and then keeps it.

    DeepSeek-V2 (arXiv:2405.04434, sec. 3.1.2) was trained so, from 2304 to 9216 sequences over the first 225 billion
    tokens, and DeepSeek-V3 (arXiv:2412.19437, sec. 4.2), from 3072 to 15360 over 469 billion.

    Args:
        final: Size at the end of the ramp; below `initial` for a ramp down.
        over: Length of the ramp in the unit.
        unit: Unit of the length: `"tokens"`, `"samples"`, `"steps"`, `"epochs"` or `"progress"`.
        learning_rate: How the learning rate follows the size; see `Schedule`.
        **bounds: See `Schedule`.

    Raises:
        ValueError: If the final size is outside the bounds, or a value outside its range.
        TypeError: If a size is no whole number.

    Example:
        >>> schedule = Ramp(9216, 225e9, initial=2304, granularity=256)
    """

    def __init__(
        self,
        final: int,
        over: float,
        *,
        unit: Unit = "tokens",
        learning_rate: LearningRateRule = "none",
        **bounds: Unpack[AllBounds],
    ):
        super().__init__(learning_rate=learning_rate, **bounds)
        self.needs = needs_of(unit)
        self.limits.check_size("final", final)
        if not 0.0 < over < math.inf:
            raise ValueError(f"over must be a number of {unit} above 0, got {over}.")
        self.final = final
        self.over = over
        self.unit: Unit = unit

    def update(self, observation: BatchObservation) -> BatchDecision:
        """Returns the size at the present position; see `Schedule.update`."""
        share = min(position(observation, self.unit) / self.over, 1.0)
        return BatchDecision(self._initial + (self.final - self._initial) * share)
