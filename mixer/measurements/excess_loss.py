"""Training losses above those of a reference model."""

from mixer.measurements.measurement import ByStream


class ExcessLoss(ByStream):
    """Mean per item in the last step of the loss above that of the trainer's reference model, `[num_streams]`.

    It is 0 on an item where the loss is below that of the reference; NaN for a stream without a value.
    """

    column = "excess_loss"
    is_loss = True
    costs = "a forward of the reference model each step"
