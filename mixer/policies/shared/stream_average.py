"""Moving averages of per-stream values."""

import numpy as np

from mixer.utils.arrays import FloatArray
from mixer.utils.ranges import check_decay
from mixer.utils.saved_state import HasState


class StreamAverage(HasState):
    """A moving average of one number per stream with the given decay, without the bias of a start at 0.

    The weight of a new value includes the bias correction of Kingma and Ba (2015, arXiv:1412.6980, sec. 3). A stream
    without a value keeps its average.

    Args:
        decay: Share of the old average that stays at each value, in [0, 1); 0 keeps only the last value.
        name: Name of the decay in an error.

    Raises:
        ValueError: If the decay is outside [0, 1).
    """

    remembered = ("_values", "_counts")

    def __init__(self, decay: float, name: str = "decay"):
        check_decay(name, decay, "0 keeps only the last value")
        self.decay = decay
        self.start(0)

    def start(self, num_values: int) -> None:
        """Discards all values.

        Args:
            num_values: Number of averages; `num_streams`, or its square for a matrix.
        """
        self._values = np.zeros(num_values)
        self._counts = np.zeros(num_values, dtype=np.int64)

    @property
    def values(self) -> FloatArray:
        """`[num_values]`: the averages; NaN without a value."""
        return np.where(self._counts > 0, self._values, np.nan)

    def take(self, values: FloatArray) -> None:
        """Updates the averages.

        Args:
            values: `[num_values]`; those that are not finite are ignored.
        """
        new = np.isfinite(values)
        self._counts[new] += 1
        weight = (1.0 - self.decay) / (1.0 - self.decay ** self._counts[new])
        self._values[new] = (1.0 - weight) * self._values[new] + weight * values[new]
