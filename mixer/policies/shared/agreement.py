"""How far successive measurements of scores agree, and how far from the prior a mixture may therefore go."""

import math

import numpy as np

from mixer.utils.arrays import BoolArray, FloatArray
from mixer.utils.saved_state import HasState

_FIRST, _LEAST = 0.3, 0.15  # agreement before the second measurement, and the least one after it
_NUM_FIRST = 2.0  # correlations that the first agreement counts as
_NUM_KEPT = 5  # correlations that are averaged
_FALL = 4.0  # of the reach's logarithm for a rise of the loss's
_USUAL_RISE = 0.02  # of the loss between two measurements: no surprise


class Agreement(HasState):
    """The evidence for a large move: that scores are still the same after a smaller one.

    The *agreement* is the mean correlation of successive scores over the last five measurements, from 0.15 to 1. Noise
    lowers a correlation by the share of the scores' differences that it makes up, so the sum of correlations is divided
    by that of what noise leaves; 0.3 counts as two more. The *reach* grows by half of what the agreement leaves of the
    way to 1, and falls when the loss rises between two measurements.

    Args:
        num_streams: Number of streams.
    """

    remembered = ("_scores", "_signal", "_correlations", "_most", "_reach", "_loss")

    def __init__(self, num_streams: int):
        self._scores, self._signal = np.full(num_streams, np.nan), 0.0
        self._correlations, self._most, self._reach, self._loss = np.zeros(0), np.zeros(0), _FIRST, 0.0

    @property
    def value(self) -> float:
        """The agreement, at most 1."""
        total, most = float(self._correlations.sum()), float(self._most.sum())
        return min(max((_NUM_FIRST * _FIRST + total) / (_NUM_FIRST + most), _LEAST), 1.0)

    @property
    def reach(self) -> float:
        """How far the mixture may go from the prior, at most 1."""
        return min(self.value, self._reach)

    def take(self, scores: FloatArray, known: BoolArray, variance: float, loss: float) -> None:
        """Takes a measurement.

        Args:
            scores: `[num_streams]`.
            known: bool `[num_streams]`: the measured streams.
            variance: Of a score, by its noise.
            loss: Of the objective; NaN if unknown.
        """
        both, signal = known & np.isfinite(self._scores), signal_share(scores[known], variance)
        if both.sum() > 1:
            found = _correlation(scores[both], self._scores[both])
            self._correlations = np.append(self._correlations, found)[-_NUM_KEPT:]
            self._most = np.append(self._most, math.sqrt(signal * self._signal))[-_NUM_KEPT:]
            self._reach += self.value * (1.0 - self._reach) / 2.0
        self._scores, self._signal = np.where(known, scores, np.nan), signal
        if math.isfinite(loss):
            rise = math.log(loss / self._loss) if loss > self._loss > 0.0 else 0.0
            self._reach *= math.exp(-_FALL * max(0.0, rise - _USUAL_RISE))
            self._loss = loss


def signal_share(scores: FloatArray, variance: float) -> float:
    """Returns the share of the scores' differences that noise does not explain, in [0, 1].

    It is shaped after the positive part of James and Stein's factor; K − 1 in place of K − 3 is the mean of the sum of
    squares under noise alone.

    Args:
        scores: `[num_streams]`.
        variance: Of each.
    """
    squares = float(((scores - scores.mean()) ** 2).sum())
    return max(0.0, 1.0 - (len(scores) - 1) * variance / squares) if squares > 0.0 else 0.0


def _correlation(first: FloatArray, second: FloatArray) -> float:
    first, second = first - first.mean(), second - second.mean()
    size = math.sqrt(float(first @ first) * float(second @ second))
    return float(first @ second) / size if size > 0.0 else 0.0
