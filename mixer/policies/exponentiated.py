"""One step of exponentiated gradient ascent on the simplex, which several policies share."""

import numpy as np

from mixer.policies.base import FloatArray
from mixer.policies.softmax import softmax

HUGE = 1e300  # infinity with which one can still calculate


def exponentiated_step(weights: FloatArray, values: FloatArray, step_size: float, smoothing: float = 0.0) -> FloatArray:
    """Moves weights towards large values: `w_k ← w_k exp(η v_k)`, normalised, then `(1 − c) w_k + c/K`.

    The update of group DRO (Sagawa et al. 2020, arXiv:1911.08731, Algorithm 1) with the smoothing of DoReMi (Xie et al.
    2023, arXiv:2305.10429, Algorithm 1). Streams without a value keep their share, before smoothing; the others share
    out what they had together.

    Args:
        weights: `[num_streams]` on the simplex.
        values: `[num_streams]`: what is to be large; NaN or infinite where there is no value.
        step_size: `η`, 0 or more.
        smoothing: `c` in [0, 1].

    Returns:
        `[num_streams]` on the simplex.
    """
    moved, known = weights.copy(), np.isfinite(values)
    together = weights[known].sum()
    if together > 0.0:
        with np.errstate(over="ignore", divide="ignore"):  # the logarithm of 0 is a share of 0
            logits = np.log(weights[known]) + np.clip(step_size * values[known], -HUGE, HUGE)
        moved[known] = together * softmax(logits)
    smoothed = (1.0 - smoothing) * moved + smoothing / len(weights)
    normalised: FloatArray = smoothed / smoothed.sum()
    return normalised
