"""NoiseScale: sizes that follow the gradient noise."""

import math
from dataclasses import KW_ONLY, dataclass
from typing import Annotated

from mixer.measurements import GradientNoise
from mixer.schedules.base import BatchDecision, BatchObservation
from mixer.schedules.limits import check_above
from mixer.schedules.shared.measured import MeasuredSchedule


@dataclass(eq=False, repr=False)
class NoiseScale(MeasuredSchedule):
    """Follows the simple noise scale: `b = share · tr Σ / ||g||²`.

    The noise scale of McCandlish et al. (2018, arXiv:1812.06162, eq. 2.9). Below it a larger batch saves steps for
    nearly no more samples, above it samples are wasted. Signal and noise are smoothed first, then divided. The size
    changes every `interval_steps` steps; it stays constant in between, and while the averages give no estimate (not
    above 0). Several ranks measure in every step; a single rank only in the step before a decision.

    The bounds (`initial`, `minimum`, `maximum`, `granularity`, `max_growth`) are those of `Schedule`.

    Args:
        share: Share of the noise scale, above 0.
        decay: Share of the old averages that stays at each measurement, in [0, 1).
        interval_steps: Number of steps between decisions, and on a single rank between measurements.
        powers_of_two: Whether to round to the power of two with the nearest ratio, for rare changes.
        learning_rate: How the learning rate follows the size; see `Schedule`.
        max_growth: Largest factor of growth per step; `None` is no limit.

    Raises:
        ValueError: If a value is outside its range.
    """

    share: Annotated[float, check_above, 0] = 1.0
    decay: float = 0.9
    interval_steps: int = 20
    _: KW_ONLY
    powers_of_two: bool = True
    max_growth: float | None = 2.0

    def update(self, observation: BatchObservation) -> BatchDecision:
        """Updates the averages and decides when it is due; see `Schedule.update`."""
        self._take(observation[GradientNoise])
        scale = self._noise_scale()
        if scale is None or observation.step % self.interval_steps:
            return BatchDecision(observation.batch_size)
        size = self.limits.clamp(self.share * scale)
        return BatchDecision(2.0 ** round(math.log2(size)) if self.powers_of_two else size)
