"""Group DRO: more weight to the streams with the largest losses."""

from dataclasses import dataclass
from typing import Annotated

import numpy as np

from mixer.measurements import Loss, Needs
from mixer.policies.contract import Decision, Mixture, Observation, PolicyWithOptions, Terms
from mixer.policies.shared.decisions import ActsOn, decide
from mixer.policies.shared.dominant import DominantStream
from mixer.policies.shared.exponentiated import ExponentiatedWeights
from mixer.policies.shared.stream_average import StreamAverage
from mixer.utils.arrays import BoolArray, FloatArray
from mixer.utils.ranges import check_range


@dataclass(eq=False, repr=False)
class GroupDRO(PolicyWithOptions):
    """Weights streams for the worst of them: `min_θ max_α Σ_k α_k L_k(θ)`, by alternating steps.

    Sagawa et al. 2020, "Distributionally Robust Neural Networks for Group Shifts: On the Importance of Regularization
    for Worst-Case Generalization", arXiv:1911.08731, Algorithm 1: after each step `α_k ← α_k exp(η L_k)`, normalised;
    the model is trained on `Σ_k α_k L_k`. There a step has a sample of one group: only its `α` grows, and multiplies
    this sample. Here `α` starts even, that of all streams grows at once, and losses take effect in the next step. By
    default `α` multiplies the losses, as in the paper, and sampling keeps your weights `p` (uniform in the
    paper): a sample of stream k counts `α_k/p_k`, so the expected gradient is that of `Σ_k α_k L_k` for any `p` (`L_k`
    per item with `unit="tokens"`, otherwise as far as samples have equally many items). With `acts_on="sampling"` `α`
    is the mixture itself, with the same expectation, without micro-batches of a single stream, and with more data of
    the streams that matter more.

    A stream without a sample in the step counts with its last loss, as in DoReMi's public code, so it loses nothing by
    not being sampled. There are no importance weights, which would only add noise to an unbiased mean. A stream that is
    absent, or never had a loss, keeps its share. A step without any loss changes nothing. Losses are compared as they
    are: their units have to be comparable between streams.

    Nothing pulls back: a stream that keeps the largest loss ends with all the weight. When it ends, the others continue
    with their `α`, however small: it is stored as a logarithm. A stream of weight 0 takes no part: its `α` is 0, and K,
    the number of streams, does not count it.

    Args:
        step_size: `η`, per unit of loss; the authors' code uses 0.01.
        smoothing: `c` in [0, 1]: `α ← (1 − c) α + c/K` after each step; 0 in the paper.
        acts_on: Whether `α` multiplies the losses (the paper's form), or is the sampling mixture.
        unit: Whether the weights are shares of samples or of tokens.

    Raises:
        ValueError: If a value is outside its range.
    """

    remembered = ("_alpha", "_last_losses")

    needs = Needs((Loss(),))
    compares_losses = True
    own_cost = "micro-batches of one stream each"

    step_size: Annotated[float, check_range, 0, np.inf, "0 keeps the weights"] = 0.01
    smoothing: Annotated[float, check_range, 0, 1, "0 is no smoothing, 1 is uniform"] = 0.0
    acts_on: ActsOn = "loss"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._alpha = ExponentiatedWeights()
        self._last_losses = StreamAverage(0.0)  # keeps the last value
        self._dominant = DominantStream(self.name)

    def start(self, mixture: Mixture) -> Decision:
        """Discards all losses and starts with even `α`; see `Policy.start`."""
        num_streams = len(mixture.names)
        self._own, takes_part = mixture.weights, mixture.weights > 0.0
        self._alpha.start(takes_part / takes_part.sum())
        self._last_losses.start(num_streams)
        self._dominant.start(mixture.names)
        return self._decide(mixture.is_active)

    def update(self, observation: Observation) -> Decision:
        """Updates `α` by the new losses; see `Policy.update`."""
        losses, active = self._losses(observation), observation.is_active
        self._dominant.take(observation, self._alpha.shares(active))
        if np.isfinite(losses).any():
            self._last_losses.take(losses)
            values = np.where(active, self._last_losses.values, np.nan)
            self._alpha.step(values, self.step_size, self.smoothing)
        return self._decide(active)

    def _losses(self, observation: Observation) -> FloatArray:
        """`[num_streams]`: the losses to lower for the worst stream, for a subclass; NaN if unknown."""
        return observation.by_stream(Loss)

    def _decide(self, active: BoolArray) -> Decision:
        if self.acts_on == "sampling":
            return Decision(self._alpha.mixture(active))
        factors = np.ones(len(self._own))
        np.divide(self._alpha.shares(active), self._own, out=factors, where=self._own > 0.0)
        return decide(factors, self._own, active, "loss")

    def explain(self) -> Terms:
        """Returns `α`, each stream's last loss, and your weights; see `Policy.explain`."""
        return {"alpha": self._alpha.weights, "last loss": self._last_losses.values, "own weight": self._own}
