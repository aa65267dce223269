"""The norm of the gradient."""

from collections.abc import Sequence
from typing import Any

from mixer.measurements.measurement import Measurement


class GradientNorm(Measurement[float]):
    """Norm of the last step's gradient before clipping."""

    @staticmethod
    def reported(result: Any, streams: Sequence[str]) -> float:  # noqa: ARG004 for results by stream
        """Returns the number; see `Measurement.reported`."""
        return float(result)
