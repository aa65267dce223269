"""GradNorm: gradients of similar size, larger for the streams that learn slowly."""

from dataclasses import dataclass
from typing import Annotated

import numpy as np

from mixer.measurements import Gradients, Loss
from mixer.policies.contract import Decision, Mixture, Observation
from mixer.policies.shared.decisions import ActsOn, with_mean_one
from mixer.policies.shared.gradient_policy import GradientPolicy, KnownGradients
from mixer.policies.shared.stream_average import StreamAverage
from mixer.utils.arrays import BoolArray, FloatArray
from mixer.utils.ranges import IntervalSteps, MinSamples, check_range


@dataclass(eq=False, repr=False)
class GradNorm(GradientPolicy):
    """Balances loss weights until gradients have similar norms, larger ones for streams that learn slowly: GradNorm.

    Chen et al. 2018, "GradNorm: Gradient Normalization for Adaptive Loss Balancing in Deep Multitask Networks",
    arXiv:1711.02257, sec. 3. With factors `y_k` on the losses, norms `G_k = y_k ||g_k||`, their mean `Ḡ`, loss ratios
    `L̃_k = L_k(t) / L_k(0)` and relative rates `r_k = L̃_k / mean L̃`, the target norms are `Ḡ r_k^α` (eq. 1); the
    factors of the present streams have a mean of 1.

    The paper takes a gradient step of `Σ_k |G_k − Ḡ r_k^α|` with respect to y at every step (eq. 2). Here the norms are
    measured at intervals without a gradient through the factors: their fixed point has a closed form, `y_k ∝ r_k^α /
    ||g_k||`, and a decision goes part of the way, `log y_k += rate · (log y*_k − log y_k)`. The paper usually takes the
    norm at the last shared layer, here it is that of all probed layers, corrected for noise.

    With `acts_on="sampling"` (ours) y changes the sampling instead of the losses: weights are the streams' own times y,
    without micro-batches of a single stream. The expected gradient is the same; its noise is not.

    Args:
        alpha: `α`, 0 or more; the paper's is 1.5 on its main data (NYUv2) and 0.12 to 0.3 on others. 0 equalises the
            norms whatever the losses are.
        acts_on: Whether y multiplies the losses, as published, or changes the sampling.
        interval_steps: Steps between measurements.
        rate: Part of the way to the fixed point per decision, in (0, 1].
        max_factor: Largest factor between y and 1, either way, before normalisation; a gradient of norm 0 would need an
            infinite one.
        min_samples: Least samples of each stream in a batch.
        decay: Share of the old averages that stays at each measurement or loss, in [0, 1). The first average loss is
            `L(0)`, that of the first step with one; about `ln(classes)` for an untrained classifier.
        unit: Whether the weights are shares of samples or of tokens.

    Raises:
        ValueError: If a value is outside its range.
    """

    _remembered = ("_factors", "_first", "_losses")

    needs = (Gradients(variance=True), Loss())
    own_cost = "micro-batches of one stream each"

    alpha: Annotated[float, check_range, 0, 100, "1.5 is the paper's for NYUv2, 0 equalises the norms"] = 1.5
    acts_on: ActsOn = "loss"
    interval_steps: IntervalSteps = 10
    rate: Annotated[float, check_range, 1e-9, 1, "1 goes to the fixed point at once"] = 0.5
    max_factor: Annotated[float, check_range, 1, 1e9, "10 allows factors from a tenth to ten"] = 10.0
    min_samples: MinSamples = 2
    decay: float = 0.9

    def __post_init__(self) -> None:
        super().__post_init__()
        self._losses = StreamAverage(self.decay)

    def start(self, mixture: Mixture) -> Decision:
        """Discards losses and factors, and starts as `GradientPolicy`; see `Policy.start`."""
        num_streams = len(mixture.names)
        self._losses.start(num_streams)
        self._first = np.full(num_streams, np.nan)
        self._factors = np.ones(num_streams)
        return super().start(mixture)

    def update(self, observation: Observation) -> Decision:
        """Updates the average losses, then as `GradientPolicy`; see `Policy.update`."""
        self._losses.take(observation.by_stream(Loss))
        losses = self._losses.values
        self._first = np.where(np.isfinite(self._first), self._first, losses)
        return super().update(observation)

    def _weigh(self, gradients: KnownGradients) -> FloatArray | None:
        norms = np.sqrt(np.maximum(np.diagonal(gradients.gram), 0.0))
        if not norms.max() > 0.0:
            return None
        best = np.log(self._rates(gradients.known)) * self.alpha - np.log(np.maximum(norms, norms.max() * 1e-12))
        most = np.log(self.max_factor)
        best = np.clip(best - best.mean(), -most, most)  # around the mean of the logarithms
        old = np.log(self._factors[gradients.known])
        new = np.exp(old + self.rate * (best - old))
        # The factors of these streams keep their sum, and all together K.
        self._factors[gradients.known] = new * (self._factors[gradients.known].sum() / new.sum())
        if self.acts_on == "loss":
            return None
        weights = self._own[gradients.known] * self._factors[gradients.known]
        return weights / weights.sum() if weights.sum() > 0.0 else None

    def _rates(self, known: np.ndarray) -> FloatArray:
        """Returns `r_k`; 1 without a positive loss."""
        first, now = self._first[known], self._losses.values[known]
        with np.errstate(invalid="ignore"):
            is_usable = (first > 0.0) & (now > 0.0)
        ratios = np.ones(len(first))
        if is_usable.any():
            logs = np.log(now[is_usable]) - np.log(first[is_usable])
            relative = np.exp(np.maximum(logs - logs.max(), -300.0))  # a common factor cancels with the mean
            ratios[is_usable] = relative / relative.mean()
        return ratios

    def _decision(self, weights: FloatArray, active: BoolArray) -> Decision:
        return Decision(weights, with_mean_one(self._factors, active) if self.acts_on == "loss" else None)
