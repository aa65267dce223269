"""R&B's Balance: more of the streams with gradients along that of the evaluated mixture."""

from dataclasses import dataclass
from typing import Annotated

import numpy as np

from mixer.policies.contract import Decision, Mixture
from mixer.policies.shared.gradient_policy import GradientPolicy, KnownGradients, scaled_to_one
from mixer.policies.shared.shares import softmax
from mixer.policies.shared.targets import Targets, among, target_weights
from mixer.utils.arrays import FloatArray
from mixer.utils.ranges import IntervalSteps, MinSamples, check_range


@dataclass(eq=False, repr=False)
class RegularizedBalance(GradientPolicy):
    """Samples streams by the products of their gradients with that of the evaluated mixture: R&B's Balance.

    Ge et al. 2025, "R&B: Domain Regrouping and Data Mixture Balancing for Efficient Foundation Model Training",
    arXiv:2505.00358, sec. 3.4, Algorithm 1 and appendix B.1. With `p` the shares of the streams in the evaluation,
    `pᵀGw` is the first-order fall of its loss. Its maximum over the simplex is a single stream; with an entropy,

        max_w pᵀGw − (‖Gp‖₂ / λ) Σ_k w_k log w_k

    it is `w = softmax(λ Gp / ‖Gp‖₂)`: a concave programme with a closed form. Each decision replaces the weights.
    (Regrouping the data into new domains is up to the user.)

    As `‖Gp‖₂` cancels, gradients that are small or mere noise move the weights as far as large ones: with equal
    products the mixture is uniform, whatever your weights, and two streams differ by a factor of at most
    `exp(√2 λ)` (70 for λ = 3). The paper uses the last layer's gradients, sums over a window and keeps the noise in the
    diagonal; here the probed layers, a moving average, and a correction for noise. It samples evenly before the first
    decision, here by your weights, and names λ for only one data set, 3.

    Args:
        targets: Names of streams, or importance by name: `p`; `None` is your weights.
        interval_steps: Steps between measurements.
        strength: `λ`; 0 is uniform, a large one selects only the best stream.
        min_samples: Least samples of each stream in a batch.
        decay: Share of the old averages that stays at each measurement, in [0, 1).
        unit: Whether the weights are shares of samples or of tokens.

    Raises:
        ValueError: If a value is outside its range; at the start of the run if a target is no stream.
    """

    targets: Targets = None
    interval_steps: IntervalSteps = 10
    strength: Annotated[float, check_range, 0, 300, "3 is the paper's, 0 is uniform"] = 3.0
    min_samples: MinSamples = 2
    decay: float = 0.9

    def start(self, mixture: Mixture) -> Decision:
        """Reads the targets, and starts as `GradientPolicy`; see `Policy.start`."""
        self._importance = target_weights(self.targets, mixture.names, mixture.weights, "RegularizedBalance")
        return super().start(mixture)

    def _weigh(self, gradients: KnownGradients) -> FloatArray | None:
        importance = among(self._importance, gradients.known)
        return None if importance is None else balanced(gradients.gram, importance, self.strength)


def balanced(gram: FloatArray, importance: FloatArray, strength: float) -> FloatArray | None:
    """Solves R&B's programme: `softmax(λ Gp / ‖Gp‖₂)` (arXiv:2505.00358, appendix B.1).

    Args:
        gram: `[num_streams, num_streams]`: G.
        importance: `[num_streams]`: p.
        strength: λ.

    Returns:
        `[num_streams]` on the simplex; `None` if `Gp` is 0.
    """
    products = scaled_to_one(scaled_to_one(gram)[0] @ importance)[0]
    norm = float(np.linalg.norm(products))
    if not norm > 0.0:
        return None
    return softmax(strength * products / norm)
