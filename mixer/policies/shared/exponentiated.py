"""A step of exponentiated gradient ascent on the simplex, which several policies share."""

import numpy as np

from mixer.utils.arrays import FloatArray

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
