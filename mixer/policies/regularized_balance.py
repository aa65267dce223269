"""More of the streams whose gradients point where the evaluated mixture's points: the Balance step of R&B."""

import numpy as np

from mixer.policies.contract import Decision, Mixture, Unit
from mixer.policies.shared.gradient_policy import GradientPolicy, Gradients, scaled_to_one
from mixer.policies.shared.ranges import check_range
from mixer.policies.shared.softmax import softmax
from mixer.policies.shared.targets import Targets, among, check_targets, target_weights
from mixer.utils.arrays import FloatArray


class RegularizedBalance(GradientPolicy):
    """Samples streams by the products of their gradients with that of the evaluated mixture: R&B's Balance.

    Ge et al. 2025, "R&B: Domain Regrouping and Data Mixture Balancing for Efficient Foundation Model Training",
    arXiv:2505.00358, sec. 3.4, Algorithm 1 and appendix B.1. With `p` the shares of the streams in the evaluation,
    `pᵀGw` is the first-order fall of its loss. Its maximum over the simplex would be a single stream; with an entropy,

        max_w pᵀGw − (‖Gp‖₂ / λ) Σ_k w_k log w_k

    it is `w = softmax(λ Gp / ‖Gp‖₂)`: a concave programme with a closed form. Weights are overwritten at each decision,
    not multiplied. (Regrouping the data into new domains is left to whoever makes the streams.)

    As `‖Gp‖₂` is taken out, gradients that are small or noise alone move the weights as far as large ones: with all
    products equal it is uniform, whatever the streams' own weights, and two streams differ by a factor of `exp(√2 λ)`
    at most (70 for λ = 3). The paper takes the last layer's gradients, sums over a window and leaves the noise in the
    diagonal; here the probe's layers, a moving average, and no noise. It samples evenly before the first decision, here
    the streams' own weights hold, and names λ for one data set alone, 3.

    Args:
        targets: Names of streams, or importance by name: `p`; `None` is the streams' own weights.
        interval_steps: Steps from a measurement to the next.
        strength: `λ`; 0 is uniform, a large one picks the best stream alone.
        min_samples: Least samples of each stream in a batch.
        decay: Share of the old averages that stays at each measurement, in [0, 1).
        unit: Whether the weights are shares of samples or of tokens.

    Raises:
        ValueError: If a value is outside its range; at the start of the run if a target is no stream.
    """

    def __init__(
        self,
        targets: Targets = None,
        interval_steps: int = 10,
        strength: float = 3.0,
        min_samples: int = 2,
        decay: float = 0.9,
        *,
        unit: Unit = "samples",
    ):
        super().__init__(interval_steps, min_samples, decay, unit=unit)
        check_range("strength", strength, 0, 300, "3 is the paper's, 0 is uniform")
        self.targets = check_targets(targets)
        self.strength = strength

    def start(self, mixture: Mixture) -> Decision:
        """Looks the targets up, and starts as `GradientPolicy`; see `Policy.start`."""
        self._importance = target_weights(self.targets, mixture.names, mixture.weights, "RegularizedBalance")
        return super().start(mixture)

    def _weigh(self, gradients: Gradients) -> FloatArray | None:
        importance = among(self._importance, gradients.known)
        return None if importance is None else balanced(gradients.gram, importance, self.strength)


def balanced(gram: FloatArray, importance: FloatArray, strength: float) -> FloatArray | None:
    """Solves R&B's programme: `softmax(λ Gp / ‖Gp‖₂)` (arXiv:2505.00358, appendix B.1).

    Args:
        gram: `[num_streams, num_streams]`: G.
        importance: `[num_streams]`: p.
        strength: λ.

    Returns:
        `[num_streams]` on the simplex; `None` where `Gp` is 0.
    """
    products = scaled_to_one(scaled_to_one(gram)[0] @ importance)[0]
    norm = float(np.linalg.norm(products))
    if not norm > 0.0:
        return None
    return softmax(strength * products / norm)
