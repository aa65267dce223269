"""Training losses once more after the optimizer step."""

from mixer.measurements.measurement import ByStream


class LossAfter(ByStream):
    """Mean loss per item of the last step's own samples after the optimizer step, `[num_streams]`.

    NaN for a stream without a value, and for all if no step was made.
    """

    column = "loss_after"
    is_loss = True
    costs = "a second forward each step"
