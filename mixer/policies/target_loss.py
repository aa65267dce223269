"""TargetLoss (dynamic batch loading): more of the streams far above their target loss."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np

from mixer.measurements import EvaluationLoss
from mixer.policies.contract import Decision, Mixture, Observation, PolicyWithOptions, in_order
from mixer.policies.shared.exponentiated import ExponentiatedWeights
from mixer.policies.shared.named_losses import check_losses
from mixer.utils.ranges import check_range


@dataclass(eq=False, repr=False)
class TargetLoss(PolicyWithOptions):
    """Increases the weight of a stream by the gap between its validation loss and a target: dynamic batch loading.

    Xia et al. 2023, "Sheared LLaMA: Accelerating Language Model Pre-training via Structured Pruning", arXiv:2310.06694,
    Algorithm 1: at each evaluation `w_k ← w_k exp(η max(L_k − L_target,k, 0))`, normalised, from the streams' own
    weights. The targets there are predictions of a scaling law for the target size, or the losses of the larger model
    before pruning.

    The paper has no `η`, that is 1, and a stream below its target only loses share as others gain; the authors' code
    does not clip the difference at 0, so it loses share faster. The code smooths with `c/K`, we do in both forms. Each
    evaluation moves the weights again by the same gap: more evaluations move faster.

    A stream that is absent or without a loss in the evaluation keeps its share. One of weight 0 stays out, also of K,
    the number of streams.

    Args:
        target_losses: Target of the validation loss, by the name of the stream.
        step_size: `η`, per unit of loss.
        form: `"paper"`, or `"code"` for differences that are not clipped at 0.
        smoothing: `c` in [0, 1]: `w ← (1 − c) w + c/K` after each step, so `c/K` is the least share.
        unit: Whether the weights are shares of samples or of tokens.

    Raises:
        ValueError: If a value is outside its range; at the start of the run if the targets do not fit the streams.
    """

    remembered = ("_weights",)

    needs = (EvaluationLoss(),)

    target_losses: Annotated[Mapping[str, float], check_losses]
    step_size: Annotated[float, check_range, 0, np.inf, "0 keeps the weights"] = 1.0
    form: Literal["paper", "code"] = "paper"
    smoothing: Annotated[float, check_range, 0, 1, "0 is no smoothing, 1 is uniform"] = 1e-4

    def __post_init__(self) -> None:
        super().__post_init__()
        self._weights = ExponentiatedWeights()

    def start(self, mixture: Mixture) -> Decision:
        """Returns your weights; see `Policy.start`."""
        self._targets = np.array(in_order(self.target_losses, mixture.names, "TargetLoss: target_losses"))
        self._weights.start(mixture.weights)
        return Decision(mixture.weights)

    def update(self, observation: Observation) -> Decision:
        """Updates the weights after an evaluation; see `Policy.update`."""
        losses, active = observation[EvaluationLoss], observation.is_active
        if losses is not None and np.isfinite(losses).any():
            with np.errstate(over="ignore"):
                gaps = losses - self._targets
            gaps = np.maximum(gaps, 0.0) if self.form == "paper" else gaps
            self._weights.step(np.where(active, gaps, np.nan), self.step_size, self.smoothing)
        return Decision(self._weights.mixture(active))
