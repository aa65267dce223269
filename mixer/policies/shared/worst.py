"""The worst of the streams' losses, as a smooth objective."""

import numpy as np

from mixer.utils.arrays import BoolArray, FloatArray


def worst_weights(importance: FloatArray, losses: FloatArray, known: BoolArray, tau: float) -> FloatArray:
    """Gives the gradient of the smooth maximum `(1/τ) log Σ_i a_i exp(τ L_i)` with respect to the losses.

    Args:
        importance: `[num_streams]`: a, on the simplex.
        losses: `[num_streams]`: L; one that is not finite counts as the mean of the others' scores.
        known: bool `[num_streams]`: which streams are asked for; others cannot outweigh them.
        tau: `τ`.

    Returns:
        `[num_streams]`: weights in proportion to `a_i exp(τ L_i)`, which need not sum to 1; the importance itself where
        no loss is known.
    """
    counts = known & np.isfinite(losses) & (importance > 0.0)
    if not counts.any():
        return importance
    with np.errstate(over="ignore"):  # -inf is a share of 0
        scores = tau * (losses - losses[counts].max())
        scores = np.where(counts, scores, scores[counts].mean())
    weights = importance * np.exp(np.minimum(scores, 0.0))
    return weights if weights[known].sum() > 0.0 else importance
