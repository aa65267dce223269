"""The mixture for which the loss is promised to fall most: PiKE's bound and its minimum."""

from typing import Literal

import numpy as np

from mixer.utils.arrays import FloatArray, Int64Array

Bound = Literal["per_stream", "published"]

_LEAST_CURVATURE = 1e-9  # relative to the largest coefficient; less is a line, whose minimum is at a vertex


def bound_factors(conflict: float, alignment: float, counts: Int64Array, bound: Bound) -> tuple[float, float]:
    """Gives `β` and `γ = 1 + c̄(K − 1)` of Theorem 3.4 of arXiv:2502.06244.

    Published is `β = min_k(1 + c(−K + 2 − b/b_k))`. It falls with the rarest stream, so that a decision that makes one
    rare turns the next decision round. But `Σ_k w_k <g_k, Σ_j g_j> ≥ Σ_k w_k (1 − c(K − 2))||g_k||² − c Σ_k ||g_k||²`
    comes before that minimum is taken, and its last term (that with `b/b_k = 1/w_k`) is the same for every mixture: per
    stream, `β = 1 − c(K − 2)`. Below `β = 0` neither promises descent: 0 leaves the signal out, and the harm small.

    Args:
        conflict: `c`, 0 or more.
        alignment: `c̄`, 0 or more.
        counts: int64 `[num_streams]`: `b_k`, samples in the batch; streams without are left out of the minimum.
        bound: Which `β`.

    Returns:
        `β` in [0, 1] and `γ`, 1 or more.
    """
    num_streams, active = len(counts), counts[counts > 0]
    if num_streams == 1:
        return 1.0, 1.0
    rarest = float(active.sum() / active.min()) if bound == "published" and len(active) else 0.0
    beta = 1.0 + conflict * (2.0 - num_streams - rarest)
    return max(0.0, beta), 1.0 + alignment * (num_streams - 1)


def best_weights(
    squared_norm: FloatArray, variance: FloatArray, batch_size: int, step_sharpness: float, beta: float, gamma: float
) -> FloatArray | None:
    """Minimises `Σ_k w_k λ_k + ½ w_k² κ_k`, the bound on the loss after a step (arXiv:2502.06244, Theorem 3.4).

    With `λ_k = −ηβ||g_k||² + (Lη²/2b) σ_k²` and `κ_k = Lη²γ||g_k||²`. Both are divided by η here, which leaves the
    product `ηL`, and by a common scale of the gradients, which leaves the minimum where it is.

    Args:
        squared_norm: `[num_streams]`: `||g_k||²`, 0 or more.
        variance: `[num_streams]`: `σ_k²` of one sample, 0 or more.
        batch_size: `b`, samples in all.
        step_sharpness: `ηL`: learning rate times smoothness of the loss.
        beta: See `bound_factors`.
        gamma: See `bound_factors`.

    Returns:
        `[num_streams]` on the simplex, or `None` where nothing was measured but zeros.
    """
    scale = max(squared_norm.max(), variance.max())
    if not scale > 0.0:
        return None
    signal, noise = squared_norm / scale, step_sharpness / (2 * batch_size) * (variance / scale)
    return minimise_on_simplex(noise - beta * signal, step_sharpness * gamma * signal)


def minimise_on_simplex(linear: FloatArray, quadratic: FloatArray) -> FloatArray:
    """Minimises `Σ_k w_k λ_k + ½ w_k² κ_k` over the simplex, exactly.

    The minimum is `w_k = max(0, (ν − λ_k)/κ_k)` with the level ν (the paper's −μ) at which the weights sum to 1. Sorted
    by λ the first m streams have a weight, and `ν_m = (1 + Σ λ_k/κ_k) / Σ 1/κ_k` over them has to lie above their λ.

    Args:
        linear: `[num_streams]`: λ, finite.
        quadratic: `[num_streams]`: κ, finite and 0 or more.

    Returns:
        `[num_streams]`: the weights.
    """
    largest = max(np.abs(linear).max(), quadratic.max())
    if not largest > 0.0:
        return np.full(len(linear), 1.0 / len(linear))
    slope = linear / largest
    curvature = np.maximum(quadratic / largest, _LEAST_CURVATURE)
    order = np.argsort(slope, kind="stable")
    # Counted from the least slope: else the level, far from 0 against the curvature, has no digits left.
    slope = slope - slope[order[0]]
    levels = (1.0 + np.cumsum((slope / curvature)[order])) / np.cumsum(1.0 / curvature[order])
    level = levels[np.flatnonzero(levels > slope[order])[-1]]
    weights = np.maximum(0.0, (level - slope) / curvature)
    shares: FloatArray = weights / weights.sum()
    return shares
