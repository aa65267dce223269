"""PiKE's formulas: the mirror-descent step of Algorithm 1, and the descent bound of Theorem 3.4 with its minimum."""

from typing import Literal

import numpy as np

from mixer.policies.shared.exponentiated import HUGE
from mixer.utils.arrays import FloatArray, Int64Array

Bound = Literal["per_stream", "published"]

_LEAST_CURVATURE = 1e-9  # relative to the largest coefficient; less counts as linear, with the minimum at a vertex


def bound_factors(conflict: float, alignment: float, counts: Int64Array, bound: Bound) -> tuple[float, float]:
    """Returns `β` and `γ = 1 + c̄(K − 1)` of Theorem 3.4 of arXiv:2502.06244.

    The published `β = min_k(1 + c(−K + 2 − b/b_k))` falls with the rarest stream, so a decision that makes one rare
    reverses the next. But before that minimum the proof has `Σ_k w_k <g_k, Σ_j g_j> ≥ Σ_k w_k (1 − c(K − 2))||g_k||² −
    c Σ_k ||g_k||²`, and the last term (that with `b/b_k = 1/w_k`) is the same for every mixture: per stream, `β = 1 −
    c(K − 2)`. A negative `β` promises no descent: it is set to 0, which leaves the signal out.

    Args:
        conflict: `c`, 0 or more.
        alignment: `c̄`, 0 or more.
        counts: int64 `[num_streams]`: `b_k`, samples in the batch; streams without samples are ignored in the minimum.
        bound: Version of `β`.

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
    product `ηL`, and by a common scale of the gradients, which does not move the minimum.

    Args:
        squared_norm: `[num_streams]`: `||g_k||²`, 0 or more.
        variance: `[num_streams]`: `σ_k²` of one sample, 0 or more.
        batch_size: `b`, samples in all.
        step_sharpness: `ηL`: learning rate times smoothness of the loss.
        beta: See `bound_factors`.
        gamma: See `bound_factors`.

    Returns:
        `[num_streams]` on the simplex, or `None` if all measurements are 0.
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
    """
    largest = max(np.abs(linear).max(), quadratic.max())
    if not largest > 0.0:
        return np.full(len(linear), 1.0 / len(linear))
    slope = linear / largest
    curvature = np.maximum(quadratic / largest, _LEAST_CURVATURE)
    order = np.argsort(slope, kind="stable")
    # Relative to the least slope: otherwise a level far from 0 loses its digits.
    slope = slope - slope[order[0]]
    levels = (1.0 + np.cumsum((slope / curvature)[order])) / np.cumsum(1.0 / curvature[order])
    level = levels[np.flatnonzero(levels > slope[order])[-1]]
    weights = np.maximum(0.0, (level - slope) / curvature)
    shares: FloatArray = weights / weights.sum()
    return shares


def log_changes(
    signal: FloatArray, noise: FloatArray, signal_rate: float, noise_rate: float, scale_free: bool, most: float
) -> FloatArray:
    """Returns the exponents `ζ₁||g_k||² − (ζ₂/2b) σ_k²` (arXiv:2502.06244, Algorithm 1), bounded.

    Args:
        signal: `[num_streams]`: `||g_k||²`, 0 or more.
        noise: `[num_streams]`: `σ_k²`, 0 or more.
        signal_rate: `ζ₁`.
        noise_rate: `ζ₂/2b`.
        scale_free: Whether both are divided by the mean signal.
        most: Largest change of the logarithm of a weight.

    Returns:
        `[num_streams]`: relative to the median (which normalising removes), clipped.
    """
    scale = _mean(signal) if scale_free else 1.0
    if scale == 0.0:  # no signal for a scale
        return np.zeros(len(signal))
    with np.errstate(over="ignore"):
        gain = signal_rate * np.minimum(signal / scale, HUGE)
        loss = noise_rate * np.minimum(noise / scale, HUGE)
    exponents = np.minimum(gain, HUGE) - np.minimum(loss, HUGE)
    half = most / 2  # both ways; normalising adds at most the same
    changes: FloatArray = np.clip(exponents - np.median(exponents), -half, half)
    return changes


def _mean(values: FloatArray) -> float:
    """Mean of numbers with a sum that may overflow."""
    largest = float(values.max())
    return largest * float((values / largest).mean()) if largest > 0.0 else 0.0
