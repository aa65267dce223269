"""Moving averages, and plateaus of them."""

import math

from mixer.utils.errors import require
from mixer.utils.saved_state import HasState


class Average(HasState):
    """A moving average with the given decay, without the bias of a start at 0.

    The weight of a new value includes the bias correction of Kingma and Ba (2015, arXiv:1412.6980, sec. 3), so `value`
    is an average at any time.

    Args:
        decay: Share of the old average that stays at each value, in [0, 1).

    Raises:
        ValueError: If the decay is outside [0, 1).
    """

    remembered = ("value", "count")

    def __init__(self, decay: float):
        require(0.0 <= decay < 1.0, "decay", "in [0, 1)", decay)
        self.decay = decay
        self.value = 0.0
        self.count = 0

    def take(self, value: float) -> None:
        """Updates the average; a value that is not finite is ignored."""
        if not math.isfinite(value):
            return
        self.count += 1
        weight = (1.0 - self.decay) / (1.0 - self.decay**self.count)
        self.value = (1.0 - weight) * self.value + weight * value


class Trend(Average):
    """A moving average that detects plateaus.

    Args:
        decay: Share of the old average that stays at each value, in [0, 1).
        threshold: Largest relative change of a plateau.

    Raises:
        ValueError: If the decay is outside [0, 1), or the threshold is negative.
    """

    remembered = ("_last_value", "_last_count")

    def __init__(self, decay: float, threshold: float):
        super().__init__(decay)
        require(0.0 <= threshold < math.inf, "threshold", "a relative change of 0 or more", threshold)
        self.threshold = threshold
        self._last_value = 0.0
        self._last_count = 0

    def stands_still(self) -> bool | None:
        """Compares the average with its value at the last call.

        Returns:
            Whether it changed by at most the threshold; `None` without a value before, or since.
        """
        value, count = self._last_value, self._last_count
        self._last_value, self._last_count = self.value, self.count
        if not 0 < count < self.count:
            return None
        return abs(self.value - value) <= self.threshold * abs(value)
