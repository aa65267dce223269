"""DoGE: more of the streams with gradients that help the others, or the targets."""

import math
from dataclasses import dataclass
from typing import Annotated

import numpy as np

from mixer.measurements import Gradients, Needs
from mixer.policies.shared.exponentiated import exponentiated_step
from mixer.policies.shared.gradient_policy import KnownGradients, scaled_to_one
from mixer.policies.shared.targeted import TargetedPolicy, TargetsOrObjective
from mixer.policies.shared.targets import among
from mixer.utils.arrays import FloatArray
from mixer.utils.ranges import IntervalSteps, MinSamples, check_range


@dataclass(eq=False, repr=False)
class DoGE(TargetedPolicy):
    """Increases the weight of a stream with a gradient that helps the other streams (or the targets) to learn: DoGE.

    Fan, Pagliardini and Jaggi 2024, "DoGE: Domain Reweighting with Generalization Estimation", arXiv:2310.15393: `log
    w_k += (η/μ) W_k`, normalised, one step of mirror descent, with `W_k = <g_k, Σ_{j≠k} g_j>`, or `<g_k, g_target>` for
    separate targets. As in the public code, `W_k` is first divided by the mean of the gradients' norms and clipped to
    [0, 5].

    A stream that harms the others (a product below 0) keeps its logarithm, and loses share as others gain. Nothing
    pulls back to the start: streams that stay helpful take all but the least shares. `W` divided by a norm still has
    the unit of the gradient, so `rate` depends on the unit of the loss; `scale_free` divides by the mean squared norm
    instead (ours). The paper learns weights with a small model at every step, from even weights, and trains a large
    model with their mean over time; here they apply to the run itself, from your weights, at the same rate
    per decision. A run with few decisions thus moves little: multiply `rate` by `interval_steps` to move as far as the
    paper. Smoothing over measurements is ours too.

    Without targets only products of different streams count, which noise does not bias. Targets are streams,
    represented by their own training samples; noise is removed from the product of a target with itself.

    Args:
        targets: Names of streams, or importance by name; `None` is each of the others; `"objective"` is the targets of
            the declared objective, on rows of their own. The norms of the streams' gradients are not known then, so `W`
            is divided by the largest product, in any mode.
        interval_steps: Steps between measurements.
        rate: `η/μ`. In the public code `η` is the learning rate, at most 5e-4, and `μ` is 0.05 by default (0.01 in the
            published configuration).
        max_score: Upper limit of `W`, 5 in the published code; the lower limit is 0.
        scale_free: Whether to divide `W` by the mean squared norm.
        min_samples: Least samples of each stream in a batch.
        decay: Share of the old averages that stays at each measurement, in [0, 1).
        unit: Whether the weights are shares of samples or of tokens.

    Raises:
        ValueError: If a value is outside its range; at the start of the run if a target is no stream.
    """

    needs = Needs((Gradients(),))

    targets: TargetsOrObjective = None
    interval_steps: IntervalSteps = 10
    rate: Annotated[float, check_range, 0, math.inf, "0.01 is η/μ of the public code"] = 0.01
    max_score: Annotated[float, check_range, 0, 1e9, "5 is that of the published code"] = 5.0
    scale_free: bool = False
    min_samples: MinSamples = 2
    decay: float = 0.9

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.targets is not None and not self.follows_objective:
            self.needs = (Gradients(variance=True, interval_steps=self.interval_steps),)

    def _weigh_targets(self, products: FloatArray, losses: FloatArray, weights: FloatArray) -> FloatArray | None:
        helped = self._importance @ scaled_to_one(products)[0]
        size = float(np.abs(helped).max())
        return (
            exponentiated_step(weights, np.clip(helped / size, 0.0, self.max_score), self.rate) if size > 0.0 else None
        )

    def _weigh(self, gradients: KnownGradients) -> FloatArray | None:
        gram, scale = scaled_to_one(gradients.gram)
        squared_norms = np.maximum(np.diagonal(gram), 0.0)
        if self.targets is None:
            helped = gram.sum(axis=1) - np.diagonal(gram)
        else:
            importance = among(self._importance, gradients.known)
            if importance is None:
                return None
            helped = gram @ importance
        # <g, g> has the unit `scale`, a norm that of its root.
        size = squared_norms.mean() if self.scale_free else np.sqrt(squared_norms).mean() / math.sqrt(scale)
        if not size > 0.0:
            return None
        with np.errstate(over="ignore"):
            scores = np.clip(helped / size, 0.0, self.max_score)
        return exponentiated_step(gradients.weights, scores, self.rate)
