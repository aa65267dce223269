"""Exponentiated gradient ascent on the simplex."""

from collections.abc import Sequence

import numpy as np

from mixer.policies.shared.softmax import softmax
from mixer.utils.arrays import BoolArray, FloatArray

HUGE = 1e300  # infinity with which one can still calculate


def exponentiated_step(weights: FloatArray, values: FloatArray, step_size: float) -> FloatArray:
    """Moves weights towards large values: `w_k ← w_k exp(η v_k)`, normalised.

    The step of group DRO (Sagawa et al. 2020, arXiv:1911.08731, Algorithm 1). Streams without a value keep their
    share; the others share out what they had together.

    Args:
        weights: `[num_streams]` on the simplex.
        values: `[num_streams]`: what is to be large; NaN or infinite where there is no value.
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
    """Makes the step on logarithms; the weights have the same sum as before.

    Args:
        logs: `[num_streams]`: of the weights.
        values: `[num_streams]`: what is to be large, finite.
        step_size: `η`, 0 or more.

    Returns:
        `[num_streams]`: logarithms of the new weights.
    """
    with np.errstate(over="ignore"):
        raised = logs + np.clip(step_size * values, -HUGE, HUGE)
    raised -= raised.max()  # first, or a large one would leave no digits
    shifted: FloatArray = raised + (np.logaddexp.reduce(logs) - np.logaddexp.reduce(raised))
    return shifted


_LOG_RANGE = 230.0  # e^-230 is about 1e-100: no sample in any run, and far from underflow


class ExponentiatedWeights:
    """Weights that move by exponentiated steps, as logarithms: none is lost for good by underflowing.

    A weight of `e^-800` is nothing beside one near 1; once that stream has left, it may be all there is. A stream that
    starts with weight 0 stays out: neither steps nor smoothing bring it in.
    """

    def start(self, weights: FloatArray) -> None:
        """Begins anew.

        Args:
            weights: `[num_streams]` on the simplex.
        """
        self._among = weights > 0.0
        self._logs = np.log(weights, out=np.zeros(len(weights)), where=self._among)  # 0 for those that are out

    def step(self, values: FloatArray, step_size: float, smoothing: float) -> None:
        """Makes a step, and smooths as DoReMi (Xie et al. 2023, arXiv:2305.10429): `w ← (1 − c) w + c/K`.

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
        """Gives the weights of some streams as shares among these.

        Args:
            active: bool `[num_streams]`: which ones.

        Returns:
            `[num_streams]`: shares that sum to 1, 0 for the others; all 0 where none of them has a weight.
        """
        return softmax(self._logs, self._among & active)

    def mixture(self, active: BoolArray) -> FloatArray:
        """Gives the weights as a mixture to sample from, in which every stream that is not out has something.

        That is 1e-100 of the largest of those that are there, so that these share out what they are left with when
        others leave, however little it was.

        Args:
            active: bool `[num_streams]`: which streams are there.

        Returns:
            `[num_streams]` on the simplex.
        """
        among = self._among & active
        if not among.any():
            return self.weights
        return softmax(np.clip(self._logs - self._logs[among].max(), -_LOG_RANGE, _LOG_RANGE), self._among)

    def state(self) -> list[float]:
        """Gives the logarithms, as plain data that JSON can hold; 0 for a stream that is out."""
        logs: list[float] = self._logs.tolist()
        return logs

    def load_state(self, state: Sequence[float]) -> None:
        """Takes up saved logarithms, after `start`.

        Args:
            state: What `state` gave.
        """
        self._logs = np.array(state, dtype=np.float64)
