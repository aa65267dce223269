"""The mixture for which a chosen objective falls most, as far as measurements confirm it."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from mixer.gradient_statistics import GradientStatistics
from mixer.policies.base import Decision, FloatArray, Mixture, Observation, Unit
from mixer.policies.evidence import Evidence
from mixer.policies.gradient_policy import GradientPolicy, Gradients
from mixer.policies.objective_bound import ObjectiveBound
from mixer.policies.ranges import check_range
from mixer.policies.simplex_programme import positive_part
from mixer.policies.stream_average import StreamAverage
from mixer.policies.targets import Targets, among, check_targets, target_weights

_SAME = 1e-9  # weights that differ by less are the same mixture


class ObjectiveDescent(GradientPolicy):
    """Mixes for the best descent of an objective of your choice, and leaves the own weights on evidence alone.

    Ours. The objective is `F = Σ_i a_i L_i` over all streams or over targets: their average, or the worst, for which
    `a_i ∝ a⁰_i exp(τ L_i)` is the gradient of the smooth maximum `(1/τ) log Σ a⁰_i exp(τ L_i)`. A step of length `s =
    ηL` along the gradient of a batch of mixture `w` lowers F by at least (see `ObjectiveBound`)

        `(1/L) [s aᵀGw − ½ s² (wᵀGw + Σ_k w_k σ_k²/b)]`.

    *Which mixture?* At a short given step it is that of the largest gradients: a longer step in disguise, which the
    learning rate could have made and Adam divides out again, paid for with a bias that stays as steps add up. The bound
    is without that where its step is the best, `s = 1`; there it says `2L·fall = aᵀGa − [(w − a)ᵀG(w − a) + wᵀσ²/b]`,
    the mean squared error of the batch's gradient as an estimate of F's. Bias adds up over steps, noise averages out,
    over about `1/s` of them. So the criterion `"estimate"` minimises

        `(w − a)ᵀ G (w − a) + s Σ_k w_k σ_k²/b`:

    without noise `w = a` for *every* G, for the average loss equal shares however much larger one stream's gradients
    are. What is gained comes from noise: samples go from noisy streams to those whose gradient can stand for theirs.
    `"descent"` takes the bound at the given step as it stands and follows steep streams. That pays while losses are far
    from their ends and streams share little, costs where noise is all that is left, and should not be had without
    evidence. `"alignment"` takes it at each mixture's own best step, which maximises the squared cosine between the
    batch's gradient and F's, `(aᵀGw)² / (wᵀGw + wᵀσ²/b)`.

    *Evidence.* `G` and `σ²` are noisy, and the best mixture of noisy numbers looks better than it is. So the candidate
    of earlier measurements is tried on each new one, before that enters the averages: the fall it promises there, less
    that of the own weights, is a gain without the flattery of having been chosen. Of its mean and standard error comes
    the trust `κ` (see `Evidence`), and `w = own + κ (candidate − own)`: own weights until a gain is confirmed, and
    again when it no longer is. The candidate stays within a factor of `max_ratio` of the own weights.

    On quadratics with noise (`tests/mixer/policies/test_objective_descent.py`) the default ends no worse than equal
    shares, by 1 %, and with `evidence=0` it ends lower by a third where one stream is noise: evidence costs gains too.
    What it does not see: the metric of an adaptive optimizer, curvature that differs by stream, what a stream teaches
    in the long run, and whether a falling training loss is a falling validation loss. To be no worse than the own
    weights is its aim, not a guarantee.

    Args:
        objective: `"average"` or `"worst"` of the losses.
        targets: Names of streams, or importance by name: `a`, or `a⁰` for the worst. `None` is the own weights. Targets
            are streams of the run, and their own samples stand for them.
        interval_steps: Updates from a measurement to the next.
        max_ratio: Factor by which a weight may differ from the own at most, either way; 1 holds them.
        evidence: Standard errors by which a gain has to be above 0 to be trusted at all; 0 trusts every prediction.
        criterion: What makes a mixture the best: see above.
        step_sharpness: `s = ηL`, without unit: share of the noise that does not average out, or the given step.
        tau: `τ` of the worst, above 0, per unit of loss; a large one is the maximum.
        loss: What the worst is the worst of: training losses, or by how much these exceed a reference model's.
        min_samples: Least samples of each stream in a batch.
        decay: Share of the old averages that stays at each measurement or loss, in [0, 1).
        evidence_decay: The same for gains; one of 0.95 remembers some 20 measurements.
        unit: Whether the weights are shares of samples or of tokens.

    Raises:
        ValueError: If a value is outside its range; at the start of the run if a target is no stream.
    """

    def __init__(
        self,
        objective: Literal["average", "worst"] = "average",
        targets: Targets = None,
        interval_steps: int = 10,
        max_ratio: float = 2.0,
        evidence: float = 2.0,
        criterion: Literal["estimate", "alignment", "descent"] = "estimate",
        step_sharpness: float = 0.1,
        tau: float = 3.0,
        loss: Literal["train", "excess"] = "train",
        min_samples: int = 2,
        decay: float = 0.9,
        evidence_decay: float = 0.95,
        *,
        unit: Unit = "samples",
    ):
        super().__init__(interval_steps, min_samples, decay, unit=unit)
        if objective not in ("average", "worst"):
            raise ValueError(f"objective must be 'average' or 'worst', got {objective!r}; targets= names streams.")
        if loss not in ("train", "excess"):
            raise ValueError(f"loss must be 'train' or 'excess', got {loss!r}.")
        check_range("max_ratio", max_ratio, 1, 1e6, "2 lets a stream have half to twice its own weight")
        check_range("evidence", evidence, 0, 100, "2 standard errors are usual, 0 trusts every prediction")
        check_range("step_sharpness", step_sharpness, 1e-9, 1e9, "it has no unit, 1 is the longest safe step")
        if criterion not in ("estimate", "alignment", "descent"):
            raise ValueError(f"criterion must be 'estimate', 'alignment' or 'descent', got {criterion!r}.")
        check_range("tau", tau, 1e-9, 1e9, "a large one is the maximum, a small one the average")
        self.objective, self.targets, self.loss = objective, check_targets(targets), loss
        self.max_ratio, self.tau = max_ratio, tau
        self.criterion, self.step_sharpness = criterion, step_sharpness
        self._evidence = Evidence(evidence_decay, evidence)
        self._losses = StreamAverage(decay)
        if objective == "worst":
            self.needs = self.needs | {"loss" if loss == "train" else "excess_loss"}

    def start(self, mixture: Mixture) -> Decision:
        """Looks the targets up, forgets all evidence, and starts as `GradientPolicy`; see `Policy.start`."""
        self._importance = target_weights(self.targets, mixture.names, mixture.weights, "ObjectiveDescent")
        self._evidence.start()
        self._losses.start(len(mixture.names))
        self._candidate = mixture.weights
        return super().start(mixture)

    def update(self, observation: Observation) -> Decision:
        """Takes the new losses into their averages, then as `GradientPolicy`; see `Policy.update`."""
        losses = observation.losses if self.loss == "train" else observation.excess_losses
        if self.objective == "worst" and losses is not None:
            self._losses.take(losses)
        return super().update(observation)

    @property
    def trust(self) -> float:
        """How far the candidate is trusted now, in [0, 1]."""
        return self._evidence.trust

    def _measure(self, gradients: GradientStatistics, there: NDArray[np.bool_], batch_size: int) -> None:
        self._evidence.take(self._gain(gradients, there, batch_size))
        super()._measure(gradients, there, batch_size)

    def _gain(self, gradients: GradientStatistics, there: NDArray[np.bool_], batch_size: int) -> float:
        """By how much more the candidate lowers the objective than the own weights, as a new measurement has it.

        Steps and the unit, which is what the own weights promise, are those of the averages: the gain is linear in the
        new statistics, and as unbiased as they are. NaN where nothing can be said.
        """
        averages = self._averages(there, batch_size)
        if averages is None:
            return float("nan")
        known = averages.known
        own, candidate, importance = (
            among(weights, known) for weights in (self._own, self._candidate, self._objective(known))
        )
        if own is None or candidate is None or importance is None or np.abs(candidate - own).max() < _SAME:
            return float("nan")
        unit = _root(averages.gram, averages.variance)
        expected = self._bound(averages.gram, averages.variance, unit, batch_size, importance)
        length = expected.square(own)
        if not length > 0.0:
            return float("nan")
        gram, variance = self._products(gradients)
        with np.errstate(over="ignore", invalid="ignore"):
            seen = self._bound(gram[np.ix_(known, known)], variance[known], unit, batch_size, importance)
            falls = [seen.fall(weights, self._step or expected.best_step(weights)) for weights in (candidate, own)]
            return (falls[0] - falls[1]) / length

    def _weigh(self, gradients: Gradients) -> FloatArray | None:
        own = among(self._own, gradients.known)
        importance = among(self._objective(gradients.known), gradients.known)
        if own is None or importance is None:
            return own
        unit = _root(gradients.gram, gradients.variance)
        bound = self._bound(gradients.gram, gradients.variance, unit, gradients.batch_size, importance)
        lower, upper = own / self.max_ratio, np.minimum(1.0, own * self.max_ratio)
        best, _ = replace(bound, gram=positive_part(bound.gram)).best_weights(own, lower, upper, self._step)
        self._candidate = self._own.copy()
        self._candidate[gradients.known] = self._own[gradients.known].sum() * best
        return own + self._evidence.trust * (best - own)

    @property
    def _step(self) -> float | None:
        return {"estimate": 1.0, "descent": self.step_sharpness, "alignment": None}[self.criterion]

    def _bound(
        self, gram: FloatArray, variance: FloatArray, unit: float, batch_size: int, importance: FloatArray
    ) -> ObjectiveBound:
        # Divided twice by the unit, whose square may overflow.
        noise = variance / unit / unit / batch_size
        if self.criterion == "estimate":
            noise = self.step_sharpness * noise
        return ObjectiveBound(gram / unit / unit, noise, importance)

    def _objective(self, known: NDArray[np.bool_]) -> FloatArray:
        """`[num_streams]`: the weights `a` of the losses in the objective's gradient."""
        if self.objective == "average":
            return self._importance
        losses = self._losses.values
        counts = known & np.isfinite(losses) & (self._importance > 0.0)
        if not counts.any():
            return self._importance
        with np.errstate(over="ignore"):  # -inf is a share of 0
            scores = self.tau * (losses - losses[counts].max())
            scores = np.where(counts, scores, scores[counts].mean())  # one without a loss counts as the middle
        # Streams that are not known cannot outweigh those that are: only these are asked for.
        exponentials = self._importance * np.exp(np.minimum(scores, 0.0))
        return exponentials if exponentials[known].sum() > 0.0 else self._importance

    def state_dict(self) -> dict[str, Any]:
        """Gives candidate, evidence and losses too; see `Policy.state_dict`."""
        own = {"evidence": self._evidence.state_dict(), "losses": self._losses.state_dict()}
        return {**super().state_dict(), "candidate": self._candidate.tolist(), **own}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes up candidate, evidence and losses too; see `Policy.load_state_dict`."""
        super().load_state_dict(state)
        self._candidate = np.array(state["candidate"], dtype=np.float64)
        self._evidence.load_state_dict(state["evidence"])
        self._losses.load_state_dict(state["losses"])


def _root(gram: FloatArray, variance: FloatArray) -> float:
    """The root of the largest coefficient, by which gradients are divided."""
    return float(np.sqrt(max(float(np.abs(gram).max()), float(variance.max())))) or 1.0
