"""DGA: more of the streams with gradients along that of the targets."""

import math
from dataclasses import dataclass
from typing import Annotated

from mixer.measurements import Alignment, Worth
from mixer.policies.contract import Decision, Mixture
from mixer.policies.shared.alignment_policy import AlignmentInterval, AlignmentPolicy
from mixer.policies.shared.exponentiated import exponentiated_step
from mixer.policies.shared.shares import divided_anew, shares
from mixer.utils.arrays import BoolArray, FloatArray
from mixer.utils.ranges import check_range


@dataclass(eq=False, repr=False)
class DGA(AlignmentPolicy):
    """Raises the weight of streams with gradients along that of the targets: dynamic gradient alignment.

    Fan, Grangier and Ablin 2024, "Dynamic Gradient Alignment for Online Data Mixing", arXiv:2410.02498: every few steps
    `α_k ← α_k exp(η ⟨∇ℓ_k, ∇ℓ_target⟩)`, normalised, on fresh rows of each source and of the target; the mixture is the
    moving average of α. Several targets count by the objective.

    As published, gradients are compared by plain products, which have a unit: `scale_free` divides them by the largest
    of their measurement (ours). Nothing pulls back to the start. The paper measures at every step or every few steps of
    long runs; see `interval_steps`.

    Args:
        rate: `η`.
        average: Share of the new α that enters the mixture at a measurement, in (0, 1]; 1 takes α itself.
        scale_free: Whether to divide the products by the largest.
        interval_steps: Steps between regular measurements; 0 chooses it by their cost. Earlier steps, which
            grow apart, are followed too where that is paid for.
        tau: `τ` of the smooth maximum for the worst of several targets, per unit of loss.
        unit: Whether the weights are shares of samples or of tokens.

    Raises:
        ValueError: If a value is outside its range.
    """

    remembered = ("_alphas",)

    needs = (Alignment(metric="plain", joined=True),)

    rate: Annotated[float, check_range, 0, math.inf, "1 is usual with scale_free"] = 1.0
    average: Annotated[float, check_range, 1e-6, 1, "1 takes each new vector itself"] = 0.5
    scale_free: bool = True
    interval_steps: AlignmentInterval = 0
    tau: Annotated[float, check_range, 1e-9, 1e9, "a large one is the maximum, a small one the average"] = 3.0

    def start(self, mixture: Mixture) -> Decision:
        """Starts from your weights; see `Policy.start`."""
        self._alphas = mixture.weights
        return super().start(mixture)

    def _weigh(self, worth: Worth, known: BoolArray, weights: FloatArray) -> FloatArray:
        products = worth.scores[known] * (1.0 if self.scale_free else worth.largest)
        alphas = exponentiated_step(shares(self._alphas[known]), products, self.rate)
        self._alphas = divided_anew(self._alphas, known, alphas)
        mixture: FloatArray = (1.0 - self.average) * weights + self.average * alphas
        return mixture
