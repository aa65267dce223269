"""Sizes by the noise of the gradient."""

import math
from typing import Unpack

from mixer.schedules.base import AllBounds, BatchDecision, BatchObservation, LearningRateRule
from mixer.schedules.shared.measured import MeasuredSchedule


class NoiseScale(MeasuredSchedule):
    """Follows the simple noise scale: `b = share · tr Σ / ||g||²`.

    The noise scale of McCandlish et al. (2018, arXiv:1812.06162, eq. 2.9). Below it a larger batch saves steps for
    nearly no more samples, above it samples are wasted. Signal and noise are smoothed first, then divided. The size
    changes every `interval_steps` steps, and holds in between and where the averages are no estimate (not above 0).
    On several ranks all steps since the last decision were measured; on a single rank only the one just before it.

    Args:
        share: Share of the noise scale to take, above 0.
        decay: Share of the old averages that stays at each measurement, in [0, 1).
        interval_steps: Number of steps from a decision to the next, and on a single rank from a measurement to the
            next.
        powers_of_two: Whether to take the power of two that is nearest by ratio, so that the size changes seldom.
        learning_rate: How the learning rate follows the size; see `Schedule`.
        **bounds: See `Schedule`; `max_growth` is 2 here unless it is given, with `None` for no bound.

    Raises:
        ValueError: If a value is outside its range.
    """

    def __init__(
        self,
        share: float = 1.0,
        decay: float = 0.9,
        interval_steps: int = 20,
        *,
        powers_of_two: bool = True,
        learning_rate: LearningRateRule = "none",
        **bounds: Unpack[AllBounds],
    ):
        bounds.setdefault("max_growth", 2.0)
        super().__init__(decay, interval_steps, learning_rate=learning_rate, **bounds)
        if not 0.0 < share < math.inf:
            raise ValueError(f"share must be above 0, got {share}.")
        self.share = share
        self.powers_of_two = powers_of_two

    def update(self, observation: BatchObservation) -> BatchDecision:
        """Takes the measurement into the averages and decides when it is time; see `Schedule.update`."""
        self._take(observation.noise)
        scale = self._noise_scale()
        if scale is None or observation.step % self.interval_steps:
            return BatchDecision(observation.batch_size)
        size = self.limits.clamp(self.share * scale)
        return BatchDecision(2.0 ** round(math.log2(size)) if self.powers_of_two else size)
