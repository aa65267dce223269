"""Signal and noise of the gradient of the whole mixture."""

import math
from dataclasses import dataclass

from mixer.measurements.gradients import Gradients, GradientStatistics
from mixer.measurements.measurement import Measurement


@dataclass(frozen=True)
class Noise:
    """Signal and noise of the gradient of the whole mixture.

    Args:
        squared_norm: Unbiased estimate of `||g||²`, the squared norm of the true gradient.
        variance: Estimate of `tr Σ`, the variance of a single sample's gradient.
    """

    squared_norm: float
    variance: float


@dataclass(frozen=True)
class GradientNoise(Measurement[Noise]):
    """Signal and noise of the last step's gradient.

    Several ranks measure it in every step, by the differences between their gradients; a single rank by `Gradients`.

    Args:
        interval_steps: Steps between measurements on a single rank.
    """

    requires = frozenset({"whole gradients"})
    shown_by = Gradients

    interval_steps: int = 1

    @staticmethod
    def shown(result: GradientStatistics) -> Noise | None:
        """Returns the noise that the streams' gradients show, if it is finite; see `Measurement.shown`."""
        noise = Noise(*result.noise)
        return noise if math.isfinite(noise.squared_norm) and math.isfinite(noise.variance) else None

    def cost(self) -> str:
        """Returns that of `Gradients`, on a single rank; see `Measurement.cost`."""
        return f"{Gradients(True, self.interval_steps).cost()} on a single rank"
