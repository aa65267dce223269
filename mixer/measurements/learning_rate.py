"""The learning rate of a run."""

from typing import NamedTuple

from mixer.measurements.measurement import Measurement


class Rates(NamedTuple):
    """Factors of the run's own learning-rate schedule: 1 at its peak, without the effect of the batch size.

    Attributes:
        next: That of the next step.
        last: That of the last step.
    """

    next: float = float("nan")
    last: float = float("nan")


class LearningRate(Measurement[Rates]):
    """The run's own learning-rate schedule; no result if the optimizer has none."""
