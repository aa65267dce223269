"""Shares from scores."""

import numpy as np

from mixer.utils.arrays import BoolArray, FloatArray


def softmax(scores: FloatArray, among: BoolArray | None = None) -> FloatArray:
    """Turns scores into shares: `exp(s_k) / Σ_j exp(s_j)`.

    Args:
        scores: `[num_streams]`: numbers, however large; finite among those that count.
        among: bool `[num_streams]`: which streams count; `None` for all.

    Returns:
        `[num_streams]`: shares that sum to 1 (0 if none counts); 0 for the others, and where a score is hopelessly
        below the largest.
    """
    among = np.ones(len(scores), dtype=np.bool_) if among is None else among
    shares = np.zeros(len(scores))
    if among.any():
        with np.errstate(over="ignore"):  # -inf is a share of 0
            exponentials = np.exp(scores[among] - scores[among].max())
        shares[among] = exponentials / exponentials.sum()
    return shares
