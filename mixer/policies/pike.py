"""PiKE: the mixture with the largest guaranteed fall of the loss, by the streams' gradients."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import numpy as np

from mixer.measurements import Gradients, GradientStatistics, Needs
from mixer.measurements.gradients import alignment_of, conflict_of
from mixer.policies.contract import Decision, Mixture, Observation, PolicyWithOptions, Terms
from mixer.policies.shared.descent_bound import Bound, best_weights, bound_factors, log_changes
from mixer.policies.shared.shares import share_out
from mixer.policies.shared.stream_average import StreamAverage
from mixer.utils.arrays import BoolArray, FloatArray, Int64Array
from mixer.utils.ranges import IntervalSteps, MinSamples, check_range


@dataclass(eq=False, repr=False)
class PiKE(PolicyWithOptions):
    """Increases the weight of a stream with a large gradient and little gradient noise: PiKE.

    Li et al. 2025, "PiKE: Adaptive Data Mixing for Large-Scale Multi-Task Learning Under Low Gradient Conflicts",
    arXiv:2502.06244 (NeurIPS 2025). Every `interval_steps` steps, with `b` the samples of the last step:

    - `"practical"` (Algorithm 1), one step of mirror descent: `w_k ← w_k · exp(ζ₁||g_k||² − (ζ₂/2b) σ_k²)`, normalised.
    - `"conceptual"` (Theorem 3.4), the mixture with the largest guaranteed fall of the loss: minimises `Σ_k w_k λ_k + ½
      w_k² κ_k` with `λ_k = −ηβ||g_k||² + (Lη²/2b) σ_k²` and `κ_k = Lη²γ||g_k||²`. It moves there at once, regardless of
      `max_log_change`; wrap it in `Smoothed` for smaller steps.

    The paper gives neither ζ₁, ζ₂ nor the interval; these and the following are ours. Both statistics are smoothed over
    measurements (negative estimates of `||g_k||²` enter, the average is then clipped at 0) and divided by the mean of
    `||g_k||²` over the streams, so the unit of the losses does not matter. The default rates weight signal and noise as
    the conceptual form does at `ηL = 1` without conflict. Each stream keeps `min_samples` samples of the batch, as
    otherwise its variance could not be measured again; one with an own weight of 0 has none. A stream without a
    measurement keeps its share, an absent one does not count. Your weights apply until the first
    measurement, as far as they leave `min_samples`.

    Nothing in the practical form pulls back: with constant gradients it ends at the stream with the largest one, and
    the others at their least; if noise hides the differences, it wanders. `Floor` around it, or the conceptual form,
    limits both.

    Args:
        interval_steps: Steps between measurements.
        mode: `"practical"` or `"conceptual"`.
        signal_rate: `ζ₁`, 0 or more; practical form.
        noise_rate: `ζ₂`, 0 or more; 0 ignores the noise, against the paper's advice. Practical form.
        scale_free: Whether to divide by the mean squared norm; `False` is the equation as published. The conceptual
            form is always scale-free.
        max_log_change: Largest change of `log w_k` per decision, apart from the floor; practical form. Exponents are
            clipped to half of it around their median.
        step_sharpness: `ηL`, learning rate times smoothness of the loss, without unit: 1 is the longest step with
            guaranteed descent, a small one selects few streams, a large one evens out. Conceptual form.
        conflict: `c` of the bound; `None` measures it, 0 assumes none. Conceptual form.
        alignment: `c̄` of the bound; `None` measures it, 1 assumes the worst. Conceptual form.
        bound: `β = 1 − c(K − 2)`, or as published `min_k(1 + c(−K + 2 − b/b_k))`, which reverses when a stream becomes
            rare; see `bound_factors`. Conceptual form.
        min_samples: Least samples of each stream in a batch; equal shares if the batch is too small.
        decay: Share of the old averages that stays at each measurement, in [0, 1).
        unit: Whether the weights are shares of samples or of tokens; `min_samples` always counts samples.

    Raises:
        ValueError: If a value is outside its range.
    """

    remembered: ClassVar[tuple[str, ...]] = ("_weights",)

    needs = Needs((Gradients(variance=True),))

    interval_steps: IntervalSteps = 20
    mode: Literal["practical", "conceptual"] = "practical"
    signal_rate: Annotated[float, check_range, 0, math.inf, "0 ignores the signal"] = 0.1
    noise_rate: Annotated[float, check_range, 0, math.inf, "0 ignores the noise"] = 0.1
    scale_free: bool = True
    max_log_change: Annotated[float, check_range, 0, 100, "0.5 lets a weight grow by two thirds at a decision"] = 0.5
    step_sharpness: Annotated[float, check_range, 1e-9, 1e9, "it has no unit, 1 is the longest safe step"] = 1.0
    conflict: Annotated[float | None, check_range, 0, 0.5, "None measures it"] = None
    alignment: Annotated[float | None, check_range, 0, 1, "None measures it"] = None
    bound: Bound = "per_stream"
    min_samples: MinSamples = 2
    decay: float = 0.9

    def __post_init__(self) -> None:
        super().__post_init__()
        self._averages = {name: StreamAverage(self.decay) for name in ("squared_norm", "variance")}
        if self.mode == "conceptual":
            self._averages["gram"] = StreamAverage(self.decay)

    def start(self, mixture: Mixture) -> Decision:
        """Discards all gradients and returns your weights; see `Policy.start`."""
        self._own = self._weights = mixture.weights
        num_streams = len(mixture.names)
        for name, average in self._averages.items():
            average.start(num_streams**2 if name == "gram" else num_streams)
        return Decision(self._weights)

    def update(self, observation: Observation) -> Decision:
        """Updates the averages, and computes new weights when they are due; see `Policy.update`."""
        batch_size = observation.batch_size or max(1, int(observation.counts.sum()))
        active = observation.is_active & (self._own > 0)
        least, lengths = self.min_samples / batch_size, observation.tokens_per_sample
        if (gradients := observation[Gradients]) is not None:
            self._take(gradients)
            if observation.step % self.interval_steps == 0:
                weights = self._weigh(observation.counts, batch_size, active)
                self._weights = share_out(weights, self._own, active, least, lengths)
        return Decision(share_out(self._weights, self._own, active, least, lengths))

    def _take(self, gradients: GradientStatistics) -> None:
        is_whole = np.isfinite(gradients.squared_norm) & np.isfinite(gradients.variance)
        self._averages["squared_norm"].take(np.where(is_whole, gradients.squared_norm, np.nan))
        self._averages["variance"].take(np.where(is_whole, gradients.variance, np.nan))
        if "gram" in self._averages:
            self._averages["gram"].take(gradients.gram.ravel())

    def _weigh(self, counts: Int64Array, batch_size: int, active: BoolArray) -> FloatArray:
        factors = self._factors()
        if self.scale_free or self.mode == "conceptual":
            factors = factors / factors.max()  # only ratios matter
        squared_norm, variance = (self._averages[name].values for name in ("squared_norm", "variance"))
        known = active & np.isfinite(squared_norm)
        if not known.any():
            return self._weights
        with np.errstate(over="ignore"):
            signal = np.maximum(squared_norm[known], 0.0) * factors[known] ** 2
            noise = np.maximum(variance[known], 0.0) * factors[known] ** 2
        old, weights = self._weights[known], self._weights.copy()
        if self.mode == "practical":
            noise_rate = self.noise_rate / (2 * batch_size)
            changes = log_changes(signal, noise, self.signal_rate, noise_rate, self.scale_free, self.max_log_change)
            new = old * np.exp(changes)
        else:
            best = self._best(signal, noise, counts, batch_size, known, factors)
            new = old if best is None else best
        weights[known] = old.sum() * new / new.sum()
        return weights

    def _best(
        self,
        signal: FloatArray,
        noise: FloatArray,
        counts: Int64Array,
        batch_size: int,
        known: BoolArray,
        factors: FloatArray,
    ) -> FloatArray | None:
        """The mixture of Theorem 3.4 over the known streams."""
        gram = self._averages["gram"].values.reshape(len(counts), -1) * np.outer(factors, factors)
        gram = gram[np.ix_(known, known)]
        conflict = conflict_of(gram, signal) if self.conflict is None else self.conflict
        alignment = alignment_of(gram, signal) if self.alignment is None else self.alignment
        beta, gamma = bound_factors(conflict, alignment, counts[known], self.bound)
        return best_weights(signal, noise, batch_size, self.step_sharpness, beta, gamma)

    def _factors(self) -> FloatArray:
        """`[num_streams]`: factors on the streams' gradients, for a subclass."""
        return np.ones(len(self._weights))

    def explain(self) -> Terms:
        """Returns the averages, and the weights before the least samples; see `Policy.explain`."""
        squared_norm, variance = (self._averages[name].values for name in ("squared_norm", "variance"))
        return {"squared_norm": squared_norm, "variance": variance, "kept weight": self._weights}

    def state_dict(self) -> dict[str, Any]:
        """Returns weights and averages; see `Policy.state_dict`."""
        averages = {name: average.state_dict() for name, average in self._averages.items()}
        return {**super().state_dict(), **averages}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Loads weights and averages; see `Policy.load_state_dict`."""
        super().load_state_dict(state)
        for name, average in self._averages.items():
            average.load_state_dict(state[name])
