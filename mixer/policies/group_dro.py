"""More weight to the streams with the largest losses: group DRO."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from mixer.policies.contract import Decision, Mixture, Observation, Policy, Terms, Unit
from mixer.policies.shared.acts_on import ActsOn, check_acts_on, decide
from mixer.policies.shared.exponentiated import ExponentiatedWeights
from mixer.policies.shared.ranges import check_range
from mixer.policies.shared.stream_average import StreamAverage
from mixer.utils.arrays import BoolArray, FloatArray


class GroupDRO(Policy):
    """Weighs streams for the worst of them: `min_θ max_α Σ_k α_k L_k(θ)`, by a step of each player at a time.

    Sagawa et al. 2020, "Distributionally Robust Neural Networks for Group Shifts: On the Importance of Regularization
    for Worst-Case Generalization", arXiv:1911.08731, Algorithm 1: after each step `α_k ← α_k exp(η L_k)`, normalised;
    the model is trained on `Σ_k α_k L_k`. There a step has a sample of one group, whose `α` alone grows and weighs this
    very sample; here `α` starts even, all streams' grow at once, and what a step shows counts from the next. By
    default `α` weighs the losses, as there, and sampling stays with the streams' own weights `p` (uniform in the
    paper): a sample of stream k counts `α_k/p_k`, so that the expected gradient is that of `Σ_k α_k L_k` whatever `p`
    is (`L_k` per item with `unit="tokens"`, else as far as samples have as many items everywhere). With
    `acts_on="sampling"` `α` is the mixture itself, which has the same expectation, costs no micro-batches of one
    stream each, and shows the streams that matter more of their data.

    A stream without a sample in the step counts with the last loss it had, as in DoReMi's public code, so that it
    loses nothing by not having been drawn; no importance weights, which would only add noise to a mean that needs none.
    One that is not there, or never had a loss, keeps its share. A step without any loss changes nothing. Losses are
    compared as they are: streams have to be comparable in their units.

    Nothing pulls back: a stream whose loss stays the largest ends with everything. When it leaves, the others go by
    the `α` that they have among them, however small: it is kept as a logarithm. A stream of weight 0 takes no part: its
    `α` is 0, and K, the number of streams, does not count it.

    Args:
        step_size: `η`, per unit of loss; the authors' code takes 0.01.
        smoothing: `c` in [0, 1]: `α ← (1 − c) α + c/K` after each step; 0 in the paper.
        acts_on: Whether `α` weighs the losses (the paper's form), or is the mixture from which samples are drawn.
        unit: Whether the weights are shares of samples or of tokens.

    Raises:
        ValueError: If a value is outside its range.
    """

    needs = frozenset({"loss"})
    own_cost = "micro-batches of one stream each"

    def __init__(
        self, step_size: float = 0.01, smoothing: float = 0.0, acts_on: ActsOn = "loss", *, unit: Unit = "samples"
    ):
        super().__init__(unit=unit)
        check_range("step_size", step_size, 0, np.inf, "0 leaves the weights as they are")
        check_range("smoothing", smoothing, 0, 1, "0 does without, 1 is uniform")
        check_acts_on(acts_on)
        self.step_size, self.smoothing = step_size, smoothing
        self.acts_on: ActsOn = acts_on
        self._alpha = ExponentiatedWeights()
        self._last_losses = StreamAverage(0.0)  # of nothing but the last value

    def start(self, mixture: Mixture) -> Decision:
        """Forgets all losses and begins with even `α`; see `Policy.start`."""
        num_streams = len(mixture.names)
        self._own, takes_part = mixture.weights, mixture.weights > 0.0
        self._alpha.start(takes_part / takes_part.sum())
        self._last_losses.start(num_streams)
        return self._decide(mixture.is_active)

    def update(self, observation: Observation) -> Decision:
        """Moves `α` by the new losses; see `Policy.update`."""
        losses, active = self._losses(observation), observation.is_active
        if np.isfinite(losses).any():
            self._last_losses.take(losses)
            values = np.where(active, self._last_losses.values, np.nan)
            self._alpha.step(values, self.step_size, self.smoothing)
        return self._decide(active)

    def _losses(self, observation: Observation) -> FloatArray:
        """`[num_streams]`: what is to be made small for the worst stream, for a subclass; NaN where there is none."""
        return observation.losses

    def _decide(self, active: BoolArray) -> Decision:
        if self.acts_on == "sampling":
            return Decision(self._alpha.mixture(active))
        factors = np.ones(len(self._own))
        np.divide(self._alpha.shares(active), self._own, out=factors, where=self._own > 0.0)
        return decide(factors, self._own, active, "loss")

    def explain(self) -> Terms:
        """Gives `α`, the loss that moved each stream's last, and the streams' own weights; see `Policy.explain`."""
        return {"alpha": self._alpha.weights, "last loss": self._last_losses.values, "own weight": self._own}

    def state_dict(self) -> dict[str, Any]:
        """Gives the weights and the last losses; see `Policy.state_dict`."""
        return {"log_weights": self._alpha.state(), "last_losses": self._last_losses.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes up weights and losses; see `Policy.load_state_dict`."""
        super().load_state_dict(state)
        self._alpha.load_state(state["log_weights"])
        self._last_losses.load_state_dict(state["last_losses"])
