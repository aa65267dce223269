"""Evidence for predicted gains from later measurements."""

import numpy as np

from mixer.policies.shared.stream_average import StreamAverage
from mixer.utils.saved_state import HasState

LEAST_MEASUREMENTS = 4  # fewer say nothing about a deviation
_MOST = 1e6  # squares of larger gains would hide all others


class Evidence(HasState):
    """A moving mean of gains with its standard error, and the trust that follows.

    A gain that is measured after its decision is not biased by the choice of the maximum. For gains `x` with the mean
    `m` and the standard error `e` the trust is

        `max(0, 1 − (z₀ e / m)²)` for `m > 0`, else 0,

    the factor by which a positive-part James-Stein estimate (Efron and Morris 1973) shrinks a mean, with the threshold
    `z₀` for its constant. Averages that weight the past by `decay` count as `(1 + d)(1 − dⁿ) / ((1 − d)(1 + dⁿ))`
    values of equal weight (the squared sum of weights over the sum of squares).

    Args:
        decay: Share of the old averages that stays at each gain, in [0, 1).
        threshold: `z₀`, 0 or more: standard errors below which nothing is trusted; 0 trusts at once.
    """

    _remembered = ("_moments", "_count")

    def __init__(self, decay: float, threshold: float):
        self.threshold = threshold
        self._moments = StreamAverage(decay, "evidence_decay")

    def start(self) -> None:
        """Discards all gains."""
        self._moments.start(2)
        self._count = 0

    def take(self, gain: float) -> None:
        """Updates the averages.

        Args:
            gain: A gain in a unit that is constant over the run; ignored if it is not finite.
        """
        if np.isfinite(gain):
            self._count += 1
            bounded = float(np.clip(gain, -_MOST, _MOST))
            self._moments.take(np.array([bounded, bounded**2]))

    @property
    def trust(self) -> float:
        """Trust in the gain, in [0, 1]."""
        if self.threshold == 0.0:
            return 1.0
        if self._count < LEAST_MEASUREMENTS:
            return 0.0
        mean, square = self._moments.values
        decay = self._moments.decay
        past = decay**self._count
        number = (1.0 + decay) * (1.0 - past) / ((1.0 - decay) * (1.0 + past))
        if not (mean > 0.0 and number > 1.0):
            return 0.0
        error = float(np.sqrt(max(0.0, square - mean**2) / (number - 1.0)))
        relative = self.threshold * error / float(mean)
        return max(0.0, 1.0 - relative * relative)
