"""MarginalValue: more of the streams whose samples lower the declared objective."""

import math
from dataclasses import dataclass
from typing import Annotated

import numpy as np

from mixer.measurements.alignment import Alignment, Worth
from mixer.policies.contract import Decision, Mixture, Observation, Terms, terms_of
from mixer.policies.shared.agreement import Agreement, signal_share
from mixer.policies.shared.alignment_policy import AlignmentInterval, AlignmentPolicy
from mixer.policies.shared.memory import Memory
from mixer.policies.shared.multipliers import BOUND_RATE, Multipliers
from mixer.policies.shared.repeated import REPEAT_PASSES, within_ends
from mixer.policies.shared.shares import softmax
from mixer.utils.arrays import BoolArray, FloatArray
from mixer.utils.ranges import check_range

_LEAST_LOG = -30.0  # of a share: no sample in any run
_NOISE = 4.0 / 3.0  # of that of a stream's rows: those of the target move all scores alike, so they add only a third


@dataclass(eq=False, repr=False)
class MarginalValue(AlignmentPolicy):
    """Allocates samples by their marginal value for the objective.

    Ours, of the family of dynamic gradient alignment (Fan et al. 2024, DGA, arXiv:2410.02498). Let `F = Σ_j a_j L_j` be
    the objective over targets j, and let the optimizer move the parameters by `−η D g` for a gradient g, with the
    diagonal D of its own metric. To first order, a sample of stream k then lowers F by η times

        s_k = ⟨Σ_j a_j ∇L_j, D ∇ℓ_k⟩.

    Over mixtures w, `Σ_k w_k s_k` alone is largest for a single stream; its worth falls as it is used, which one
    measurement does not show. So the policy maximises it with a penalty on the distance from the prior `w⁰` (your
    weights), `Σ_k w_k s_k − KL(w ‖ w⁰)/β`, whose maximum is `w_k ∝ w⁰_k exp(β s_k)`, and takes a step of
    mirror descent towards it: `log w ← (1 − r) log w + r (log w⁰ + β s)`.

    *Scale.* Scores are divided by the largest of their measurement, so β has no unit: a stream of no worth has a share
    lower by `e^−β` than the best one at the same prior.

    *Evidence.* A score is followed by a Kalman filter: an estimate with a variance that grows between measurements, as
    the worth of a stream changes while the model learns, and falls with each one by its noise. That noise is the mean
    squared standard error over the streams, and a third more for the rows of the targets. What neither explains counts
    half as change, half as noise: a surprise makes the estimate uncertain until the next measurement. Streams that
    differ by less than two standard errors share their score. β is multiplied by the least of three numbers up to 1:

    - the *trust*: the share of the scores' differences that noise does not explain, after James and Stein. Without
      evidence the goal is the prior;
    - the *agreement*: the mean correlation of successive scores over the last five measurements. A gradient is the
      worth at today's mixture, so following a right one overshoots; that the next scores still say the same is the
      evidence that a further step pays;
    - the *reach*: it begins at 0.3, grows by half of what the agreement leaves of the way to 1, and falls when the
      objective's loss rises between two measurements.

    *Repeated rows.* A gradient at this moment does not show that rows which were seen before teach less each time. So a
    score falls by `e^(−q r)` for r passes over its stream after the first, in the whole run at the pace so far. The
    rate q is measured, by the losses of rows that are trained on and of rows that are not; see `Memory`. Before the
    second pass, that of a positive score is 1/3, on the safe side: Muennighoff et al. (2023, arXiv:2305.16264) fit 1/15
    to the worth of repeated tokens in language models. To go by the whole run keeps the share the same throughout,
    which is better than much of a small stream first and little later.

    *Streams with an end.* The share of a stream with `max_epochs` is at most what lasts until the run ends, so that the
    best stream is not used up when the learning rate falls.

    *Bounds.* A set with a bound has a multiplier, added to `a`, that grows while its loss is above the bound, relative
    to it, and falls while it is below (dual ascent); the more so the further the run is, as losses that a high learning
    rate lifts fall again.

    Limits: a first-order worth is short-sighted. Streams from which much is to be learned later, or that learn fast now
    and not later, are misjudged.

    Args:
        sharpness: `β`.
        rate: `r` in (0, 1]: share of the way to the new mixture at each measurement.
        drift: Variance by which a score may change between two measurements, where the best has the score 1.
        interval_steps: Steps between regular measurements; 0 chooses it by their cost. Earlier steps, which
            grow apart, are followed too where that is paid for.
        repeat_passes: Passes over a stream after the first in which the worth of its rows is expected to fall to 1/e,
            until the run has shown it.
        tau: `τ` of the smooth maximum for the worst of several targets, per unit of loss.
        bound_rate: Growth of a bound's multiplier at a measurement of a loss 1 % above its bound, at the run's end.
        unit: Whether the weights are shares of samples or of tokens.

    Raises:
        ValueError: If a value is outside its range.
    """

    remembered = ("_scores", "_variance", "_trust", "_agreement", "_multipliers", "_memory")

    holds_bounds = True

    sharpness: Annotated[float, check_range, 0, 100, "at 8 a stream of no worth has next to no samples"] = 6.0
    rate: Annotated[float, check_range, 1e-6, 1, "1 takes each new mixture at once"] = 0.5
    drift: Annotated[float, check_range, 0, 1, "0 averages all measurements alike"] = 0.06
    interval_steps: AlignmentInterval = 0
    repeat_passes: Annotated[float, check_range, 1e-3, math.inf, "3 is on the safe side"] = REPEAT_PASSES
    tau: Annotated[float, check_range, 1e-9, 1e9, "a large one is the maximum, a small one the average"] = 3.0
    bound_rate: Annotated[float, check_range, 0, 1e3, "0 ignores bounds"] = BOUND_RATE

    def start(self, mixture: Mixture) -> Decision:
        """Starts from your weights; see `Policy.start`."""
        num_streams, decision = len(mixture.names), super().start(mixture)
        self._scores, self._variance, self._loss = np.full(num_streams, np.nan), 1.0, math.nan
        self._trust, self._agreement = 0.0, Agreement(num_streams)
        self._memory = Memory(mixture, self._objective, self.repeat_passes)
        self._multipliers, self._ends = Multipliers(self._objective, self.bound_rate), mixture.ends
        return decision

    def update(self, observation: Observation) -> Decision:
        """Computes new weights after a measurement, within what streams have left; see `Policy.update`."""
        if (targets := observation[Alignment]) is not None:
            self._memory.take(targets, super()._importance(targets.losses), observation.seen)
        return Decision(within_ends(super().update(observation).weights, self._ends, observation))

    def _importance(self, losses: FloatArray) -> FloatArray:
        importance = super()._importance(losses)
        self._loss = float(importance @ np.where(importance > 0.0, losses, 0.0))
        return importance + self._multipliers.take(losses, self._progress)

    def _weigh(self, worth: Worth, known: BoolArray, weights: FloatArray) -> FloatArray:
        self._follow(worth, known)
        scores, least = self._scores[known], math.exp(_LEAST_LOG)
        self._trust = signal_share(scores, self._variance)
        sharpness = self.sharpness * min(self._trust, self._agreement.reach)
        goal = np.log(np.maximum(self._own[known], least)) + sharpness * pooled(scores, self._variance)
        goal -= np.logaddexp.reduce(goal)
        return softmax((1.0 - self.rate) * np.log(np.maximum(weights, least)) + self.rate * goal)

    def _follow(self, worth: Worth, known: BoolArray) -> None:
        """Updates the estimates by a measurement."""
        worth = worth._replace(scores=self._memory.discounted(worth.scores, self._num_passes))
        noise = _NOISE * float(worth.variance[known].mean())
        self._agreement.take(worth.scores, known, noise, self._loss)
        is_new = known & np.isnan(self._scores)
        self._scores[is_new] = worth.scores[is_new]
        news = worth.scores[known] - self._scores[known]
        surprise = max(0.0, float((news**2).mean()) - self._variance - self.drift - noise)
        variance, noise = min(self._variance + self.drift + surprise / 2.0, 1.0), noise + surprise / 2.0
        gain = variance / (variance + noise) if noise > 0.0 else 1.0
        self._scores[known] += gain * news
        self._variance = (1.0 - gain) * variance

    def explain(self) -> Terms:
        """Gives the scores and the evidence for them; see `Policy.explain`."""
        evidence: Terms = {"trust": self._trust, "agreement": self._agreement.value, "reach": self._agreement.reach}
        return {
            "scores": self._scores,
            "variance": self._variance,
            "memory": self._memory.rates,
            **evidence,
            **terms_of(self._multipliers.state_dict()),
        }

    @property
    def scores(self) -> FloatArray:
        """`[num_streams]`: the estimates, at most 1; NaN without a measurement."""
        return self._scores.copy()


def pooled(scores: FloatArray, variance: float) -> FloatArray:
    """Replaces estimates by the mean of their group: neighbours within two standard errors of the group's first.

    Args:
        scores: `[num_streams]`.
        variance: Of each.
    """
    order, width = np.argsort(scores), 2.0 * math.sqrt(variance)
    found, start = scores.copy(), 0
    for place in range(1, len(order) + 1):
        if place == len(order) or scores[order[place]] - scores[order[start]] > width:
            group = order[start:place]
            found[group], start = scores[group].mean(), place
    return found
