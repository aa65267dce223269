"""Training losses of the streams."""

from mixer.measurements.measurement import ByStream


class Loss(ByStream):
    """Mean training loss per item of each stream in the last step, `[num_streams]`.

    NaN for a stream without a sample or a finite loss.
    """

    is_loss = True
