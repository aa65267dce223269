"""What training on one stream does to the losses of all, from falls under probe mixtures."""

import numpy as np

from mixer.utils.arrays import FloatArray


def probe_mixture(num_streams: int, index: int, share: float) -> FloatArray:
    """Gives a smoothed one-hot mixture.

    Args:
        num_streams: K.
        index: The stream that is probed.
        share: Its share, h; the others have `o = (1 − h) / (K − 1)` each.

    Returns:
        `[num_streams]` on the simplex.
    """
    mixture = np.full(num_streams, (1.0 - share) / (num_streams - 1))
    mixture[index] = share
    return mixture


def interactions_of(falls: FloatArray, share: float) -> FloatArray:
    """Solves `fall_ij = Σ_l A_il p^(j)_l` for A, where `p^(j)` is the probe mixture of stream j.

    With `p^(j) = (h − o) e_j + o`, the sum of a row of falls is that of the row of A, so that
    `A_ij = (fall_ij − o Σ_l fall_il) / (h − o)`.

    Args:
        falls: `[num_streams, num_streams]`: fall of loss i under the probe mixture of j, NaN where it is not known: it
            then counts as the mean of its row, which tells nothing for or against j.
        share: h, above 1/K.

    Returns:
        `[num_known, num_streams]`: A, without the rows of which nothing is known.
    """
    falls = falls[np.isfinite(falls).any(axis=1)]
    known = np.isfinite(falls)
    means = np.where(known, falls, 0.0).sum(axis=1, keepdims=True) / known.sum(axis=1, keepdims=True)
    falls = np.where(known, falls, means)
    other = (1.0 - share) / (falls.shape[1] - 1)
    solved: FloatArray = (falls - other * falls.sum(axis=1, keepdims=True)) / (share - other)
    return solved


def normalised(interactions: FloatArray) -> FloatArray:
    """Shifts a matrix so that no entry is negative, and scales it to a sum of 1.

    Args:
        interactions: A.

    Returns:
        Of the same shape; zeros if all entries are the same then.
    """
    if interactions.size == 0:
        return interactions
    shifted = interactions - min(float(interactions.min()), 0.0)
    total = shifted.sum()
    return shifted / total if total > 0.0 else shifted
