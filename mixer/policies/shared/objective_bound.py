"""Objectives of `ObjectiveDescent`: the guaranteed descent of a step, and the weights of the worst streams."""

from dataclasses import dataclass

import numpy as np

from mixer.policies.shared.simplex_programme import minimise_quadratic
from mixer.utils.arrays import BoolArray, FloatArray


@dataclass(frozen=True)
class ObjectiveBound:
    """The descent bound of `F = Σ_i a_i L_i` for a step along the gradient of a stratified batch.

    With `θ⁺ = θ − η Σ_k w_k ĝ_k`, where `ĝ_k` is a mean over `b w_k` samples, and F of smoothness `L` (Nesterov 2004,
    Lemma 1.2.3):

        E F(θ⁺) − F(θ) ≤ −η aᵀGw + (Lη²/2) (wᵀGw + Σ_k w_k σ_k²/b)

    The samples of stream k add `w_k² σ_k²/(b w_k)` to the squared length, which is linear in `w_k`. Times L, and with
    `s = ηL`, the fall is at least `s · aᵀGw − ½ s² (wᵀGw + wᵀν)`, `ν = σ²/b`.

    Args:
        gram: `[num_streams, num_streams]`: G.
        noise: `[num_streams]`: `ν`, 0 or more.
        importance: `[num_streams]`: a.
    """

    gram: FloatArray
    noise: FloatArray
    importance: FloatArray

    def fall(self, weights: FloatArray, step: float) -> float:
        """Returns the guaranteed fall of the objective, times L; linear in the statistics.

        Args:
            weights: `[num_streams]`: w.
            step: `s`.
        """
        return step * self._signal(weights) - 0.5 * step**2 * self.square(weights)

    def best_weights(self, centre: FloatArray, lower: FloatArray, upper: FloatArray, step: float) -> FloatArray:
        """Returns the mixture with the largest guaranteed fall, by a convex programme.

        Args:
            centre: `[num_streams]`: the mixture to keep if there is no gain.
            lower: `[num_streams]`: least weights.
            upper: `[num_streams]`: largest weights.
            step: `s`, above 0.
        """
        linear = 0.5 * step * self.noise - self.gram @ self.importance
        return minimise_quadratic(step * self.gram, linear, lower, upper, centre)

    def _signal(self, weights: FloatArray) -> float:
        return float(self.importance @ self.gram @ weights)

    def square(self, weights: FloatArray) -> float:
        """Returns the mean squared length of the batch's gradient, `wᵀGw + wᵀν`.

        Args:
            weights: `[num_streams]`: w.
        """
        return float(weights @ self.gram @ weights + self.noise @ weights)


def worst_weights(importance: FloatArray, losses: FloatArray, known: BoolArray, tau: float) -> FloatArray:
    """Returns the gradient of the smooth maximum `(1/τ) log Σ_i a_i exp(τ L_i)` with respect to the losses.

    Args:
        importance: `[num_streams]`: a, on the simplex.
        losses: `[num_streams]`: L; a loss that is not finite counts as the mean of the others' scores.
        known: bool `[num_streams]`: streams of interest; others cannot outweigh them.
        tau: `τ`.

    Returns:
        `[num_streams]`: proportional to `a_i exp(τ L_i)`, not normalised; the importance itself if no loss is known.
    """
    counts = known & np.isfinite(losses) & (importance > 0.0)
    if not counts.any():
        return importance
    with np.errstate(over="ignore"):  # -inf is a share of 0
        scores = tau * (losses - losses[counts].max())
        scores = np.where(counts, scores, scores[counts].mean())
    weights = importance * np.exp(np.minimum(scores, 0.0))
    return weights if weights[known].sum() > 0.0 else importance
