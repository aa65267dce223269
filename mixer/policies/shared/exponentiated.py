"""Exponentiated gradient ascent on the simplex."""

import numpy as np

from mixer.policies.shared.shares import softmax
from mixer.utils.arrays import BoolArray, FloatArray
from mixer.utils.saved_state import HasState

HUGE = 1e300  # a finite stand-in for infinity
_LOG_RANGE = 230.0  # e^-230 is about 1e-100: no sample in any run, and far from underflow


def exponentiated_step(weights: FloatArray, values: FloatArray, step_size: float) -> FloatArray:
    """Moves weights towards large values: `w_k ← w_k exp(η v_k)`, normalised.

    The step of group DRO (Sagawa et al. 2020, arXiv:1911.08731, Algorithm 1). Streams without a value keep their share;
    the others divide their common share anew.

    Args:
        weights: `[num_streams]` on the simplex.
        values: `[num_streams]`: values to increase; NaN or infinite if unknown.
        step_size: `η`, 0 or more.

    Returns:
        `[num_streams]` on the simplex.
    """
    moved, known = weights.copy(), np.isfinite(values) & (weights > 0.0)
    if known.any():
        moved[known] = np.exp(log_step(np.log(weights[known]), values[known], step_size))
    normalised: FloatArray = moved / moved.sum()
    return normalised


def log_step(logs: FloatArray, values: FloatArray, step_size: float) -> FloatArray:
    """Computes the step on logarithms; the sum of the weights stays the same.

    Args:
        logs: `[num_streams]`: logarithms of the weights.
        values: `[num_streams]`: values to increase, finite.
        step_size: `η`, 0 or more.

    Returns:
        `[num_streams]`: logarithms of the new weights.
    """
    with np.errstate(over="ignore"):
        raised = logs + np.clip(step_size * values, -HUGE, HUGE)
    raised -= raised.max()  # first, or a large value would leave no digits
    shifted: FloatArray = raised + (np.logaddexp.reduce(logs) - np.logaddexp.reduce(raised))
    return shifted


class ExponentiatedWeights(HasState):
    """Weights that move by exponentiated steps, stored as logarithms, so none is lost by underflow.

    A weight of `e^-800` is negligible beside one near 1, but may be all that is left once that stream ends. A stream
    that starts with weight 0 stays out: neither steps nor smoothing bring it in.
    """

    remembered = ("_logs",)

    def start(self, weights: FloatArray) -> None:
        """Resets the weights.

        Args:
            weights: `[num_streams]` on the simplex.
        """
        self._among = weights > 0.0
        self._logs = np.log(weights, out=np.zeros(len(weights)), where=self._among)  # 0 for streams that are out

    def step(self, values: FloatArray, step_size: float, smoothing: float) -> None:
        """Takes a step, and smooths as DoReMi (Xie et al. 2023, arXiv:2305.10429): `w ← (1 − c) w + c/K`.

        Args:
            values: `[num_streams]`: as for `exponentiated_step`.
            step_size: `η`, 0 or more.
            smoothing: `c` in [0, 1]; K counts the streams that are not out.
        """
        moved, known = self._logs.copy(), self._among & np.isfinite(values)
        if known.any():
            moved[known] = log_step(moved[known], values[known], step_size)
        logs = moved[self._among]
        logs -= np.logaddexp.reduce(logs)
        if smoothing > 0.0:
            with np.errstate(divide="ignore"):  # c = 1 leaves nothing of the weights
                logs = np.logaddexp(logs + np.log1p(-smoothing), np.log(smoothing / len(logs)))
        moved[self._among] = np.maximum(logs, -HUGE)
        self._logs = moved

    @property
    def weights(self) -> FloatArray:
        """`[num_streams]` on the simplex."""
        return softmax(self._logs, self._among)

    def shares(self, active: BoolArray) -> FloatArray:
        """Returns the weights of the active streams as shares among them.

        Returns:
            `[num_streams]`: shares with a sum of 1, 0 for the others; all 0 if none of them has a weight.
        """
        return softmax(self._logs, self._among & active)

    def mixture(self, active: BoolArray) -> FloatArray:
        """Returns the weights as a mixture for sampling, with a positive share of every stream that is not out.

        The least share is 1e-100 of the largest active one, so the remaining streams keep their proportions when others
        end, however small these were.

        Returns:
            `[num_streams]` on the simplex.
        """
        among = self._among & active
        if not among.any():
            return self.weights
        return softmax(np.clip(self._logs - self._logs[among].max(), -_LOG_RANGE, _LOG_RANGE), self._among)
