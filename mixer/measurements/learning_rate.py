"""The learning rate of a run."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

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

    @staticmethod
    def reported(result: Any, streams: Sequence[str]) -> Rates | None:  # noqa: ARG004 it is one for all
        """Returns the factor of the next batch as that of the last one too; see `Measurement.reported`."""
        rates = result if isinstance(result, Rates) else Rates(float(result), float(result))
        return None if math.isnan(rates.next) else rates
