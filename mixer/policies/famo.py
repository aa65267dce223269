"""FAMO: streams improve at the same rate."""

import math
from dataclasses import dataclass
from typing import Annotated

import numpy as np

from mixer.measurements import Loss, LossAfter
from mixer.policies.contract import Decision, Mixture, Observation, PolicyWithOptions
from mixer.policies.shared.decisions import ActsOn, decide
from mixer.policies.shared.shares import softmax
from mixer.policies.shared.stream_average import StreamAverage
from mixer.utils.arrays import FloatArray
from mixer.utils.ranges import check_range

_LEAST = 1e-8  # added to a loss before its logarithm, as in the paper's listing
_FIRST_DECAY, _SECOND_DECAY, _EPSILON = 0.9, 0.999, 1e-8  # Adam's, arXiv:1412.6980, algorithm 1


@dataclass(eq=False, repr=False)
class FAMO(PolicyWithOptions):
    """Lowers the factor of a stream by the last fall of its log loss: `w_k ∝ z_k / L_k` with `z = softmax(ξ)`.

    Fast adaptive multitask optimization of Liu, Feng, Stone and Liu 2023, arXiv:2306.03792. With the losses of a step's
    samples before and after its optimizer step, `Δ_k = log L_k − log L'_k`, the logits follow (eq. 10 and 12) `ξ ← ξ −
    β(δ + γξ)` with `δ_k = z_k (Δ_k − Σ_j z_j Δ_j)`, in practice by Adam (algorithm 2, the paper's listing). Losses are
    multiplied by `w_k = c z_k / L_k` (eq. 11), which is a step on the log losses, weighted by z. The unit of a stream's
    loss cancels.

    The paper multiplies losses. By default this policy changes the sampling instead, in proportion to the streams' own
    weights times the same factors: the same mean gradient without micro-batches of a single stream; `acts_on="loss"` is
    the paper's form.

    The paper's `L_k` is the loss of the batch that it multiplies, which is unknown before the batch is drawn: here it
    is an average of the losses after the step, over steps (ours). A stream without both losses in a step keeps its
    logit and its part of Adam's state; z is then taken over the others (ours). A stream with a loss near its bound gets
    nearly all the weight, by `z_k / L_k`; wrap the policy in `Floor` against that.

    Args:
        learning_rate: β, of Adam on the logits.
        weight_decay: γ, which pulls the logits to 0, that is, to even z; 0.01 is the public code's, the paper's listing
            has 0.001.
        lower_bound: Smallest possible loss, which is subtracted; losses below count as missing.
        loss_decay: Share of the old average loss that stays at each step, in [0, 1).
        acts_on: Whether the factors change the sampling, or multiply the losses.
        unit: Whether the weights are shares of samples or of tokens.

    Raises:
        ValueError: If a value is outside its range.
    """

    _remembered = ("_logits", "_first", "_second", "_num_steps", "_losses")

    needs = (Loss(), LossAfter())

    learning_rate: Annotated[float, check_range, 0, 100, "the paper's is 0.025, 0 keeps the logits even"] = 0.025
    weight_decay: Annotated[float, check_range, 0, 100, "the paper tried 0.0001 to 0.01, 0 forgets nothing"] = 0.01
    lower_bound: Annotated[float, check_range, -math.inf, math.inf, "0 is that of a cross entropy"] = 0.0
    loss_decay: float = 0.9
    acts_on: ActsOn = "sampling"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._losses = StreamAverage(self.loss_decay, "loss_decay")

    def start(self, mixture: Mixture) -> Decision:
        """Discards all losses and returns the streams' own weights; see `Policy.start`."""
        num_streams = len(mixture.names)
        self._own = mixture.weights
        self._logits = np.zeros(num_streams)
        self._first, self._second = np.zeros(num_streams), np.zeros(num_streams)  # Adam's moments
        self._num_steps = np.zeros(num_streams, dtype=np.int64)  # of Adam, by stream
        self._losses.start(num_streams)
        return decide(np.ones(num_streams), self._own, self._own > 0, self.acts_on)

    def update(self, observation: Observation) -> Decision:
        """Updates the logits by the fall of the losses in the last step; see `Policy.update`."""
        if (losses_after := observation[LossAfter]) is not None:
            before, after = self._above(observation.by_stream(Loss)), self._above(losses_after)
            self._losses.take(after)
            self._step(np.log(before) - np.log(after))
        active = observation.is_active
        factors = softmax(self._logits - self._log_losses(), active & (self._own > 0))
        return decide(factors, self._own, active, self.acts_on)

    def _above(self, losses: FloatArray) -> FloatArray:
        """`[num_streams]`: losses above the bound, NaN if there is none."""
        is_known = np.isfinite(losses) & (losses >= self.lower_bound)
        return np.where(is_known, np.where(is_known, losses, 0.0) - self.lower_bound + _LEAST, np.nan)

    def _log_losses(self) -> FloatArray:
        """`[num_streams]`: logarithms of the average losses; a stream without one counts as the mean of the others."""
        logarithms = np.log(self._losses.values)
        known = np.isfinite(logarithms)
        mean = logarithms[known].mean() if known.any() else 0.0
        return np.where(known, logarithms, mean)

    def _step(self, log_falls: FloatArray) -> None:
        """One step of Adam along the gradient of eq. 10, plus the decay of eq. 12."""
        known = np.isfinite(log_falls)
        if not known.any():
            return
        z, falls = softmax(self._logits, known)[known], log_falls[known]
        gradient = z * (falls - z @ falls) + self.weight_decay * self._logits[known]
        self._num_steps[known] += 1
        steps = self._num_steps[known]
        self._first[known] = _FIRST_DECAY * self._first[known] + (1.0 - _FIRST_DECAY) * gradient
        self._second[known] = _SECOND_DECAY * self._second[known] + (1.0 - _SECOND_DECAY) * gradient**2
        first = self._first[known] / (1.0 - _FIRST_DECAY**steps)
        second = self._second[known] / (1.0 - _SECOND_DECAY**steps)
        self._logits[known] -= self.learning_rate * first / (np.sqrt(second) + _EPSILON)
