"""One step of mirror descent on the simplex."""

import numpy as np

from mixer.policies.base import FloatArray

_LEAST = 1e-12  # from 0 no factor leads back
_MOST = 1e300  # infinity with which one can still calculate


def multiplied(weights: FloatArray, exponents: FloatArray) -> FloatArray:
    """Gives `w_k · exp(e_k)`, normalised: the step of mirror descent under the entropy, or multiplicative weights.

    Args:
        weights: `[num_streams]` on the simplex.
        exponents: `[num_streams]`: e; infinite ones count as huge, NaN as 0.

    Returns:
        `[num_streams]` on the simplex.
    """
    logs = np.log(np.maximum(weights, _LEAST)) + np.nan_to_num(exponents, nan=0.0, posinf=_MOST, neginf=-_MOST)
    scaled = np.exp(np.maximum(logs - logs.max(), -700.0))
    shares: FloatArray = scaled / scaled.sum()
    return shares
