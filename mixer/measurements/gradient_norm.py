"""The norm of the gradient."""

from mixer.measurements.measurement import Measurement


class GradientNorm(Measurement[float]):
    """Norm of the last step's gradient before clipping."""
