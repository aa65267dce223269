"""How far a step moves the parameters."""

from mixer.measurements.measurement import Measurement


class UpdateNorm(Measurement[float]):
    """`||θ_{t+1} - θ_t||`: distance that the last step moved the trainable parameters."""

    requires = frozenset({"whole weights"})
    column = "update_norm"
    costs = "a copy of the trained weights, read and written each step"
