"""Training losses: of each stream, and of all."""

from mixer.measurements.measurement import ByStream, Measurement, Results
from mixer.utils.arrays import FloatArray


class Loss(ByStream):
    """Mean training loss per item of each stream in the last step, `[num_streams]`.

    NaN for a stream without a sample or a finite loss.
    """

    is_loss = True
    reads_losses = True


class MeanLoss(Measurement[float]):
    """Mean training loss per item of the last step, over all streams."""

    reads_losses = True


def reported_losses(by_stream: FloatArray, mean: float) -> Results:
    """Returns the losses that a training loop of one's own reports, as results.

    Args:
        by_stream: `[num_streams]`: mean loss of each stream.
        mean: Mean loss over all streams.
    """
    return {Loss: by_stream, MeanLoss: mean}
