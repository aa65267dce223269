"""ObjectiveDescent: the mixture of a chosen objective, or a better one as far as measurements confirm it."""

from dataclasses import dataclass, replace
from typing import Annotated, Literal

import numpy as np

from mixer.policies.contract import Decision, Mixture, Observation
from mixer.policies.gradient_statistics import GradientStatistics
from mixer.policies.shared.evidence import Evidence
from mixer.policies.shared.gradient_policy import GradientPolicy, Gradients
from mixer.policies.shared.objective_bound import ObjectiveBound, worst_weights
from mixer.policies.shared.ranges import IntervalSteps, MinSamples, check_range
from mixer.policies.shared.shares import divided_anew
from mixer.policies.shared.simplex_programme import positive_part, project
from mixer.policies.shared.stream_average import StreamAverage
from mixer.policies.shared.targets import Targets, among, target_weights
from mixer.utils.arrays import BoolArray, FloatArray

_LOSSES = {"train": "loss", "evaluation": "evaluation_loss", "excess": "excess_loss"}  # losses and their observations
_SAME = 1e-9  # largest difference between weights of the same mixture


@dataclass(eq=False, repr=False)
class ObjectiveDescent(GradientPolicy):
    """Samples for a chosen objective, and leaves its own mixture only on evidence.

    Ours. The objective is `F = Σ_i a_i L_i` over all streams or over targets: their average, or the worst, for which
    `a_i ∝ a⁰_i exp(τ L_i)` is the gradient of the smooth maximum `(1/τ) log Σ a⁰_i exp(τ L_i)`. A batch of mixture `w =
    a` has the gradient of F, without bias and for any gradients of the streams. So the *base* is the mixture nearest to
    `a` that differs from the own weights by a factor of at most `max_ratio`: for the average the own weights
    themselves. Can another mixture be better? A step of length `s = ηL` along the gradient of a batch of mixture w
    lowers F by at least (see `ObjectiveBound`)

        (1/L) [s aᵀGw − ½ s² (wᵀGw + Σ_k w_k σ_k²/b)]

    For a short step the maximum favours the largest gradients. That is a longer step in disguise: a higher learning
    rate has the same effect, Adam divides it out again, and it adds a bias that stays as steps add up. The bound avoids
    that at its best step, `s = 1`: there it says `2L·fall = aᵀGa − [(w − a)ᵀG(w − a) + wᵀσ²/b]`, the mean squared error
    of the batch's gradient as an estimate of F's. Bias adds up over steps, noise averages out over about `1/s` of them.
    So the criterion `"estimate"` minimises

        (w − a)ᵀ G (w − a) + s Σ_k w_k σ_k²/b

    Without noise `w = a` for *every* G. The gain comes from noise: samples move from noisy streams to those with
    gradients that can stand for theirs. `"descent"` uses the bound at the given step and follows steep streams; that
    pays while losses are far from their minimum and streams share little, and costs once noise dominates.

    *Evidence.* `G` and `σ²` are noisy, and the best mixture of noisy numbers looks better than it is: used directly it
    ended 4 % above uniform mixing in a trial on a real mixture. So the candidate of earlier measurements is tested on
    each new one, before that enters the averages: its predicted fall there, minus that of the base, is a gain without
    selection bias. Its mean and standard error give the trust `κ` (see `Evidence`), and `w = base + κ (candidate −
    base)`: the base until a gain is confirmed, and again when it no longer is.

    Limits: it does not see the metric of an adaptive optimizer, curvature that differs by stream, or long-term effects
    of a stream; with `"worst"`, a high loss may be noise that no sampling lowers (`loss="excess"` subtracts the loss of
    a reference model). In `benchmarks/quality/` the average equalled uniform mixing, as evidence was rare;
    for gains and costs of `"worst"` see `docs/choosing_a_policy.md`.

    Args:
        objective: `"average"` or `"worst"` of the losses.
        targets: Names of streams, or importance by name: `a`, or `a⁰` for the worst. `None` is the own weights. Targets
            are streams of the run, represented by their own samples.
        interval_steps: Steps between measurements and decisions.
        max_ratio: Largest factor between a weight and the own weight, either way; 1 keeps the own weights.
        evidence: Standard errors by which a gain must exceed 0 to be trusted; 0 trusts every prediction.
        criterion: Criterion of the candidate: see above.
        step_sharpness: `s = ηL`, without unit: share of the noise that does not average out, or the given step.
        tau: `τ` of the worst, above 0, per unit of loss; a large one is the maximum.
        loss: Losses for the worst: training losses, those of evaluations (which show overfitting), or the excess of
            training losses over a reference model's.
        min_samples: Least samples of each stream in a batch.
        decay: Share of the old averages that stays at each measurement or loss, in [0, 1); only the last evaluation
            counts.
        evidence_decay: The same for gains; 0.95 remembers about 20 measurements.
        unit: Whether the weights are shares of samples or of tokens.

    Raises:
        ValueError: If a value is outside its range; at the start of the run if a target is no stream.
    """

    _remembered = ("_base", "_candidate", "_evidence", "_losses")

    objective: Literal["average", "worst"] = "average"
    targets: Targets = None
    interval_steps: IntervalSteps = 10
    max_ratio: Annotated[float, check_range, 1, 1e6, "2 lets a stream have half to twice its own weight"] = 2.0
    evidence: Annotated[float, check_range, 0, 100, "2 standard errors are usual, 0 trusts every prediction"] = 2.0
    criterion: Literal["estimate", "descent"] = "estimate"
    step_sharpness: Annotated[float, check_range, 1e-9, 1e9, "it has no unit, 1 is the longest safe step"] = 0.1
    tau: Annotated[float, check_range, 1e-9, 1e9, "a large one is the maximum, a small one the average"] = 3.0
    loss: Literal["train", "evaluation", "excess"] = "train"
    min_samples: MinSamples = 2
    decay: float = 0.9
    evidence_decay: float = 0.95

    def __post_init__(self) -> None:
        super().__post_init__()
        self._evidence = Evidence(self.evidence_decay, self.evidence)
        self._losses = StreamAverage(0.0 if self.loss == "evaluation" else self.decay)
        if self.objective == "worst":
            self.needs = self.needs | {_LOSSES[self.loss]}

    def start(self, mixture: Mixture) -> Decision:
        """Reads the targets, discards all evidence, and starts as `GradientPolicy`; see `Policy.start`."""
        self._importance = target_weights(self.targets, mixture.names, mixture.weights, "ObjectiveDescent")
        self._evidence.start()
        self._losses.start(len(mixture.names))
        self._base = self._candidate = mixture.weights
        return super().start(mixture)

    def update(self, observation: Observation) -> Decision:
        """Updates the average losses, then as `GradientPolicy`; see `Policy.update`."""
        losses = {
            "train": observation.losses,
            "evaluation": observation.evaluation_losses,
            "excess": observation.excess_losses,
        }[self.loss]
        if self.objective == "worst" and losses is not None:
            self._losses.take(losses)
        return super().update(observation)

    @property
    def trust(self) -> float:
        """Present trust in the candidate, in [0, 1]."""
        return self._evidence.trust

    def _measure(self, gradients: GradientStatistics, active: BoolArray, batch_size: int) -> None:
        self._evidence.take(self._gain(gradients, active, batch_size))
        super()._measure(gradients, active, batch_size)

    def _gain(self, gradients: GradientStatistics, active: BoolArray, batch_size: int) -> float:
        """Gain of the candidate over the base in a new measurement.

        The unit, the base's predicted fall, is that of the averages: the gain is linear in the new statistics, and as
        unbiased as they are. NaN if unknown.
        """
        averages = self._averages(active, batch_size)
        if averages is None:
            return float("nan")
        known = averages.known
        base, candidate, importance = (
            among(weights, known) for weights in (self._base, self._candidate, self._objective(known))
        )
        if base is None or candidate is None or importance is None or np.abs(candidate - base).max() < _SAME:
            return float("nan")
        unit = _root(averages.gram, averages.variance)
        length = self._bound(averages.gram, averages.variance, unit, batch_size, importance).square(base)
        if not length > 0.0:
            return float("nan")
        gram, variance = self._products(gradients)
        with np.errstate(over="ignore", invalid="ignore"):
            seen = self._bound(gram[np.ix_(known, known)], variance[known], unit, batch_size, importance)
            return (seen.fall(candidate, self._step) - seen.fall(base, self._step)) / length

    def _weigh(self, gradients: Gradients) -> FloatArray | None:
        own = among(self._own, gradients.known)
        importance = among(self._objective(gradients.known), gradients.known)
        if own is None or importance is None:
            return own
        lower, upper = own / self.max_ratio, np.minimum(1.0, own * self.max_ratio)
        base = project(importance, lower, upper)
        unit = _root(gradients.gram, gradients.variance)
        bound = self._bound(gradients.gram, gradients.variance, unit, gradients.batch_size, importance)
        best = replace(bound, gram=positive_part(bound.gram)).best_weights(base, lower, upper, self._step)
        self._base, self._candidate = (divided_anew(self._own, gradients.known, weights) for weights in (base, best))
        return base + self._evidence.trust * (best - base)

    @property
    def _step(self) -> float:
        return 1.0 if self.criterion == "estimate" else self.step_sharpness

    def _bound(
        self, gram: FloatArray, variance: FloatArray, unit: float, batch_size: int, importance: FloatArray
    ) -> ObjectiveBound:
        # Divided twice by the unit, as its square may overflow.
        noise = variance / unit / unit / batch_size
        if self.criterion == "estimate":
            noise = self.step_sharpness * noise
        return ObjectiveBound(gram / unit / unit, noise, importance)

    def _objective(self, known: BoolArray) -> FloatArray:
        """`[num_streams]`: the weights `a` of the losses in the objective's gradient."""
        if self.objective == "average":
            return self._importance
        return worst_weights(self._importance, self._losses.values, known, self.tau)


def _root(gram: FloatArray, variance: FloatArray) -> float:
    """Root of the largest coefficient, the scale of the gradients."""
    return float(np.sqrt(max(float(np.abs(gram).max()), float(variance.max())))) or 1.0
