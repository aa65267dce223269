"""Base class of schedules that follow the gradient noise."""

import math

from mixer.measurements import GradientNoise, Noise
from mixer.schedules.base import BatchDecision, ScheduleWithOptions
from mixer.schedules.shared.average import Average
from mixer.utils.errors import require


class MeasuredSchedule(ScheduleWithOptions):
    """Smooths the measured signal and noise of the gradient, and then divides.

    The order matters: the ratio of two noisy estimates is biased, and the unbiased estimate of `||g||²` may be negative
    in a single step (McCandlish et al. 2018, arXiv:1812.06162, app. A.1).

    Several ranks measure the noise by the differences between their parts of the gradient, in every step: two reads of
    the gradient and one of the result from the device, no extra pass, but a coarse estimate for few ranks. The parts
    count as independent draws from one mixture. All ranks have the same share of every stream, to within about a
    sample, so only noise within streams counts; but a stream with fewer samples than ranks adds its difference from the
    other streams, which overestimates the noise, as does dealing samples to ranks by length.

    A single rank measures with a probe of the gradient in every `interval_steps`-th step, which only counts noise
    within streams. `decay` applies per measurement, so it covers that many times more steps.

    The bounds (`initial`, `minimum`, `maximum`, `granularity`, `max_growth`) are those of `Schedule`.

    Args:
        decay: Share of the old averages that stays at each measurement, in [0, 1); 0 uses only the last one.
        interval_steps: Number of steps between measurements if they are expensive.
        learning_rate: How the learning rate follows the size; see `Schedule`.

    Raises:
        ValueError: If a value is outside its range.
    """

    remembered = ("_squared_norm", "_variance")

    needs = (GradientNoise(),)

    decay: float
    interval_steps: int

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.interval_steps >= 1, "interval_steps", "at least 1", self.interval_steps)
        self._forget()

    def start(self, initial: int) -> BatchDecision:
        """Discards all measurements; see `Schedule.start`."""
        self._forget()
        return super().start(initial)

    def _forget(self) -> None:
        self._squared_norm, self._variance = Average(self.decay), Average(self.decay)

    def _take(self, noise: Noise | None) -> None:
        # Negative estimates count: without them the average of an unbiased estimate would be biased.
        if noise is not None and math.isfinite(noise.squared_norm) and math.isfinite(noise.variance):
            self._squared_norm.take(noise.squared_norm)
            self._variance.take(noise.variance)

    def _noise_scale(self) -> float | None:
        """Returns `tr Σ / ||g||²`, or `None` while the averages give no estimate."""
        squared_norm, variance = self._squared_norm.value, self._variance.value
        return variance / squared_norm if squared_norm > 0.0 and variance > 0.0 else None
