"""CoBa: streams converge at the same rate, and none diverges."""

from dataclasses import dataclass
from typing import Annotated

import numpy as np

from mixer.measurements import EvaluationLoss
from mixer.policies.contract import Decision, Mixture, Observation, PolicyWithOptions
from mixer.policies.shared.decisions import ActsOn, decide
from mixer.policies.shared.shares import at_least, softmax
from mixer.policies.shared.slopes import LARGEST, slopes_of
from mixer.utils.arrays import BoolArray, FloatArray
from mixer.utils.ranges import check_count, check_range


@dataclass(eq=False, repr=False)
class CoBa(PolicyWithOptions):
    """Increases the factor of a stream with a slowly falling evaluation loss, and lowers it once the loss rises.

    Gong et al. 2024, "CoBa: Convergence Balancer for Multitask Finetuning of Large Language Models", arXiv:2410.06741
    (EMNLP 2024). With `α_k(t)` the slope of `L_k / L_k(first)` over the last `window` evaluations, over the K streams

    - relative convergence score: `RCS = softmax_k(K α_k / Σ_j |α_j|)`, large for slow convergence;
    - absolute convergence score: `ACS = softmax_k(−N α_k(t) / Σ_s |α_k(s)|)` over a stream's last N slopes, small for a
      stream that stops falling or rises, relative to its own past;
    - divergence factor: `D = min(1, t · softmax_t(−τ t α_max(t) / Σ_s |α_max(s)|))` with `α_max = max_k α_k` and t
      counted from the first slopes: near 1 while all streams converge, falling once one does not;
    - weights `ω = D · RCS + (1 − D) · ACS`, then raised to a least share.

    The paper multiplies losses by ω. By default this policy changes the sampling instead, in proportion to your
    weights times the same factors: the same mean gradient without micro-batches of a single stream;
    `acts_on="loss"` is the paper's form.

    The public code uses a batch of evaluation data after every step, with a default window of 200 and a warm-up of 100
    of these, and mixes all weights with even ones if one is below `1/(10K)`; here only the low ones are raised. An
    evaluation here is one of the trainer, on all of its data: rarer and less noisy, so the defaults are smaller (ours).
    Slopes are per step, whatever lies between the evaluations. The public code also differs from the paper's formulas:
    it does not divide by the first loss, takes `α_max` from the curve of the largest loss, does not limit D to 1 and
    applies `softmax(K ω)` at the end; that last step is `sharpen=True`.

    Streams that are absent, have a first loss of 0 or less, or fewer than two evaluations within the window are left
    out of all scores and have `ω = 1/K` (ours).

    Args:
        window: Evaluations in the fit of slopes, and slopes in the comparison of ACS; at least 2.
        num_warmup_evaluations: Evaluations before the weights change; at least 2.
        tau: τ; 5 in the public code. 0 is RCS alone.
        floor: Least share of a stream as a multiple of 1/K, in [0, 1]; 0.1 is the public code's `1/(10K)`.
        sharpen: Whether to apply `softmax(K ω)` before the floor, as the public code does.
        acts_on: Whether the factors change the sampling, or multiply the losses.
        unit: Whether the weights are shares of samples or of tokens.

    Raises:
        ValueError: If a value is outside its range.
    """

    remembered = ("_first", "_steps", "_ratios", "_slopes", "_max_slopes", "_num_evaluations", "_factors")

    needs = (EvaluationLoss(),)

    window: Annotated[int, check_count, 2, "a slope needs two evaluations, the public code's is 2 to 5 warm-ups"] = 20
    num_warmup_evaluations: Annotated[int, check_count, 2, "a slope needs two evaluations"] = 5
    tau: Annotated[float, check_range, 0, 1e6, "5 is the public code's, 0 is the relative score alone"] = 5.0
    floor: Annotated[float, check_range, 0, 1, "it is a multiple of 1/K, the public code's is 0.1"] = 0.1
    sharpen: bool = False
    acts_on: ActsOn = "sampling"

    def start(self, mixture: Mixture) -> Decision:
        """Discards all evaluations and returns your weights; see `Policy.start`."""
        num_streams = len(mixture.names)
        self._own = mixture.weights
        self._first = np.full(num_streams, np.nan)
        self._steps = np.zeros(0)
        self._ratios, self._slopes = np.zeros((0, num_streams)), np.zeros((0, num_streams))
        self._max_slopes = np.zeros(0)
        self._num_evaluations = 0
        self._factors = np.full(num_streams, 1.0 / num_streams)
        return decide(self._factors, self._own, self._own > 0, self.acts_on)

    def update(self, observation: Observation) -> Decision:
        """Records new evaluation losses and computes new weights; see `Policy.update`."""
        active = observation.is_active
        if (losses := observation[EvaluationLoss]) is not None:
            self._take(losses, observation.step)
            if self._num_evaluations >= self.num_warmup_evaluations:
                self._weigh(active & (self._own > 0))
        return decide(self._factors, self._own, active, self.acts_on)

    def _take(self, losses: FloatArray, step: int) -> None:
        is_first = np.isnan(self._first) & np.isfinite(losses) & (losses > 0)
        self._first[is_first] = losses[is_first]
        known = np.isfinite(losses) & np.isfinite(self._first)
        with np.errstate(over="ignore", invalid="ignore"):
            ratios = np.where(known, np.clip(losses / self._first, -LARGEST, LARGEST), np.nan)
        self._steps = np.append(self._steps, step)[-self.window :]
        self._ratios = np.vstack([self._ratios, ratios])[-self.window :]
        self._num_evaluations += 1

    def _weigh(self, among: BoolArray) -> None:
        slopes = slopes_of(self._steps, self._ratios)
        self._slopes = np.vstack([self._slopes, slopes])[-self.window :]
        known = among & np.isfinite(slopes)
        num_streams, num_known = len(slopes), int(known.sum())
        self._factors = np.full(num_streams, 1.0 / num_streams)
        if num_known == 0:
            return
        self._max_slopes = np.append(self._max_slopes, slopes[known].max())
        relative = softmax(_by_mean_size(slopes[known], slopes[known]))
        absolute = softmax(-self._by_own_past()[known])
        share = self._divergence_factor()
        weights = share * relative + (1.0 - share) * absolute
        if self.sharpen:
            weights = softmax(num_known * weights)
        self._factors[known] = num_known / num_streams * at_least(weights, self.floor / num_known)

    def _by_own_past(self) -> FloatArray:
        """`[num_streams]`: the last slopes over the mean size of each stream's slopes; 0 if all are 0."""
        return np.array([_by_mean_size(past[-1:], past[np.isfinite(past)])[0] for past in self._slopes.T])

    def _divergence_factor(self) -> float:
        scores = -self.tau * _by_mean_size(self._max_slopes, self._max_slopes)
        last = softmax(scores)[-1]
        return min(1.0, len(scores) * float(last))


def _by_mean_size(slopes: FloatArray, among: FloatArray) -> FloatArray:
    """Slopes over the mean size of others: `n α / Σ|α|`; 0 if those are all 0."""
    size = float(np.abs(among).mean()) if len(among) else 0.0
    return slopes / size if size > 0.0 else np.zeros(len(slopes))
