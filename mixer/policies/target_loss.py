"""More of what is farthest from the loss that it should reach."""

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np

from mixer.policies.contract import Decision, Mixture, Observation, Policy, Unit
from mixer.policies.shared.exponentiated import ExponentiatedWeights
from mixer.policies.shared.named_losses import check_losses, losses_array
from mixer.policies.shared.ranges import check_range


class TargetLoss(Policy):
    """Samples a stream more, the farther its validation loss is above a target: dynamic batch loading.

    Xia et al. 2023, "Sheared LLaMA: Accelerating Language Model Pre-training via Structured Pruning", arXiv:2310.06694,
    Algorithm 1: at each evaluation `w_k ← w_k exp(η max(L_k − L_target,k, 0))`, normalised, from the streams' own
    weights. The targets there are what a scaling law predicts for a model of the wanted size, or the losses of the
    larger model that is pruned.

    The paper has no `η`, that is 1, and no stream's share falls for being below its target but by the others' growth;
    in the authors' code the difference is not cut at 0, so that it falls the faster. The code smooths with `c/K`, we do
    in both forms. Each evaluation moves the weights once more by the same gap: the more evaluations, the faster.

    A stream without a loss in the evaluation, or that is not there, keeps its share. One of weight 0 stays out, also of
    K, the number of streams.

    Args:
        target_losses: Validation loss that each stream should reach, by its name.
        step_size: `η`, per unit of loss.
        form: `"paper"`, or `"code"` for differences that are not cut at 0.
        smoothing: `c` in [0, 1]: `w ← (1 − c) w + c/K` after each step, so that `c/K` is the least share.
        unit: Whether the weights are shares of samples or of tokens.

    Raises:
        ValueError: If a value is outside its range; at the start of the run if the targets do not fit the streams.
    """

    needs = frozenset({"evaluation_loss"})

    def __init__(
        self,
        target_losses: Mapping[str, float],
        step_size: float = 1.0,
        form: Literal["paper", "code"] = "paper",
        smoothing: float = 1e-4,
        *,
        unit: Unit = "samples",
    ):
        super().__init__(unit=unit)
        check_losses(target_losses, "target_losses")
        check_range("step_size", step_size, 0, np.inf, "0 leaves the weights as they are")
        check_range("smoothing", smoothing, 0, 1, "0 does without, 1 is uniform")
        if form not in ("paper", "code"):
            raise ValueError(f"form must be 'paper' or 'code', got {form!r}.")
        self.target_losses = target_losses
        self.step_size, self.form, self.smoothing = step_size, form, smoothing
        self._weights = ExponentiatedWeights()

    def start(self, mixture: Mixture) -> Decision:
        """Gives the streams' own weights; see `Policy.start`."""
        self._targets = losses_array(self.target_losses, mixture.names, "TargetLoss: target_losses")
        self._weights.start(mixture.weights)
        return Decision(mixture.weights)

    def update(self, observation: Observation) -> Decision:
        """Moves the weights if there was an evaluation; see `Policy.update`."""
        losses, active = observation.evaluation_losses, observation.is_active
        if losses is not None and np.isfinite(losses).any():
            with np.errstate(over="ignore"):
                gaps = losses - self._targets
            gaps = np.maximum(gaps, 0.0) if self.form == "paper" else gaps
            self._weights.step(np.where(active, gaps, np.nan), self.step_size, self.smoothing)
        return Decision(self._weights.mixture(active))

    def state_dict(self) -> dict[str, Any]:
        """Gives the weights; see `Policy.state_dict`."""
        return {"log_weights": self._weights.state()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes up the weights; see `Policy.load_state_dict`."""
        super().load_state_dict(state)
        self._weights.load_state(state["log_weights"])
