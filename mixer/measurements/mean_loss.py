"""The training loss of all streams."""

from mixer.measurements.measurement import Measurement


class MeanLoss(Measurement[float]):
    """Mean training loss per item of the last step, over all streams."""
