"""How far a chosen objective falls by a step along a mixture's gradient, and the mixture for which it falls most."""

from dataclasses import dataclass

from mixer.policies.base import FloatArray
from mixer.policies.simplex_programme import minimise_quadratic

_MOST_ROUNDS = 50
_TOLERANCE = 1e-10


@dataclass(frozen=True)
class ObjectiveBound:
    """The descent bound of `F = Σ_i a_i L_i` for a step along the gradient of a stratified batch.

    With `θ⁺ = θ − η Σ_k w_k ĝ_k`, where `ĝ_k` is a mean over `b w_k` samples, and F of smoothness `L` (Nesterov 2004,
    Lemma 1.2.3):

        `E F(θ⁺) − F(θ) ≤ −η aᵀGw + (Lη²/2) (wᵀGw + Σ_k w_k σ_k²/b)`.

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

    def best_step(self, weights: FloatArray) -> float:
        """Gives the step for which a mixture promises most, `s = aᵀGw / (wᵀGw + wᵀν)`.

        Args:
            weights: `[num_streams]`: w.

        Returns:
            `s`; 0 where the mixture's gradient does not point downhill.
        """
        signal, square = self._signal(weights), self.square(weights)
        return signal / square if signal > 0.0 and square > 0.0 else 0.0

    def best_weights(
        self, start: FloatArray, lower: FloatArray, upper: FloatArray, step: float | None
    ) -> tuple[FloatArray, float]:
        """Finds the mixture that promises the largest fall.

        For a given step the programme is a convex one. Where each mixture has its own best step, what is maximised is
        `½ (aᵀGw)² / (wᵀGw + wᵀν)`, half the squared cosine that the batch's gradient has with the objective's, times
        that one's square. Step and mixture are made best in turn, which never loses anything against the start.

        Args:
            start: `[num_streams]`: the mixture to begin with, which stays where nothing is gained.
            lower: `[num_streams]`: least weights.
            upper: `[num_streams]`: largest weights.
            step: `s`, or `None` for each mixture's own.

        Returns:
            The mixture and its step; the start and 0 where that does not point downhill.
        """
        weights, length = start, self.best_step(start) if step is None else step
        for _ in range(_MOST_ROUNDS):
            if not length > 0.0:
                return start, 0.0
            linear = 0.5 * length * self.noise - self.gram @ self.importance
            weights = minimise_quadratic(length * self.gram, linear, lower, upper, start)
            longer = self.best_step(weights) if step is None else length
            if abs(longer - length) <= _TOLERANCE * length:
                break
            length = longer
        return weights, length

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
