"""Training losses: of each stream, and of all."""

from mixer.measurements.measurement import ByStream, Measurement


class Loss(ByStream):
    """Mean training loss per item of each stream in the last step, `[num_streams]`.

    NaN for a stream without a sample or a finite loss.
    """

    is_loss = True
    reads_losses = True


class MeanLoss(Measurement[float]):
    """Mean training loss per item of the last step, over all streams."""

    reads_losses = True
