"""A least share for every stream that leaves the others their proportions."""

import numpy as np

from mixer.policies.base import FloatArray


def at_least(weights: FloatArray, least: float) -> FloatArray:
    """Lifts weights to a least share; the others keep their proportions.

    Args:
        weights: `[num_streams]` on the simplex.
        least: The least share; above 1/K all shares are equal.

    Returns:
        `[num_streams]`; the weights themselves where none is below.
    """
    num_streams = len(weights)
    if least * num_streams >= 1.0:
        return np.full(num_streams, 1.0 / num_streams)
    lifted, is_low = weights, weights < least
    while is_low.any():
        lifted = np.where(is_low, least, weights * ((1.0 - least * is_low.sum()) / weights[~is_low].sum()))
        if not (lifted < least).any():
            break
        is_low |= lifted < least
    return lifted
