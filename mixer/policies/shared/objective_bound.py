"""How far a chosen objective falls by a step along a mixture's gradient, and the mixture for which it falls most."""

from dataclasses import dataclass

from mixer.policies.shared.simplex_programme import minimise_quadratic
from mixer.utils.arrays import FloatArray


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
        """Gives what the objective falls by at least, times L; linear in the statistics.

        Args:
            weights: `[num_streams]`: w.
            step: `s`.

        Returns:
            The fall.
        """
        return step * self._signal(weights) - 0.5 * step**2 * self.square(weights)

    def best_weights(self, centre: FloatArray, lower: FloatArray, upper: FloatArray, step: float) -> FloatArray:
        """Finds the mixture that promises the largest fall, by a convex programme.

        Args:
            centre: `[num_streams]`: the mixture that stays where nothing is gained.
            lower: `[num_streams]`: least weights.
            upper: `[num_streams]`: largest weights.
            step: `s`, above 0.

        Returns:
            `[num_streams]`: the mixture.
        """
        linear = 0.5 * step * self.noise - self.gram @ self.importance
        return minimise_quadratic(step * self.gram, linear, lower, upper, centre)

    def _signal(self, weights: FloatArray) -> float:
        return float(self.importance @ self.gram @ weights)

    def square(self, weights: FloatArray) -> float:
        """Gives the mean squared length of the batch's gradient, `wᵀGw + wᵀν`.

        Args:
            weights: `[num_streams]`: w.

        Returns:
            The square.
        """
        return float(weights @ self.gram @ weights + self.noise @ weights)
