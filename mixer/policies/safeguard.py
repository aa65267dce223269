"""Safeguard: back to the streams' own weights where a policy harms the objective."""

import logging
import math
from dataclasses import replace

import numpy as np

from mixer.measurements import Alignment, TargetStatistics, asked
from mixer.policies.contract import Decision, Mixture, Observation, Policy
from mixer.policies.objective import Objective
from mixer.policies.shared.multipliers import Multipliers
from mixer.policies.shared.repeated import REPEAT_PASSES, passes, planned
from mixer.policies.shared.shares import share_out, shares
from mixer.policies.shared.wrapper import Wrapper
from mixer.utils.arrays import BoolArray, FloatArray
from mixer.utils.ranges import check_count, check_range

_LEAST_KEPT = 3  # fewer measurements have no spread
_HUGE = 1e100
_LEAST_RISE = 0.01  # of the loss: less is no harm worth a policy
_SHARPNESS = 6.0  # of the smooth maximum, per unit of loss: at 3 the worst of four targets was hardly sampled more
_logger = logging.getLogger(__name__)


class Safeguard(Wrapper):
    """Follows a policy until its mixture harms the declared objective, and then returns to the streams' own weights.

    Ours. A measurement of the targets says what a sample of each stream is worth for the objective: `s_k`, with a
    standard error; see `MarginalValue`. The worth of a mixture is `Σ_k w_k s_k`. Two signs of harm end the policy for
    the rest of the run:

    - over the last measurements together, the own weights are worth more than the policy's;
    - the objective's loss on the rows that steer, averaged over as many measurements, is 1 % or more above its lowest
      such average.

    Either must exceed `√(z² + 2 log n)` standard errors of the difference, after n such comparisons (n² for the loss,
    whose lowest average is one of n): by the union bound a run of any length stops by chance alone as rarely as a
    single comparison at z, the `threshold`.

    A stream that is a target itself is what the objective is about, and the mixture of such streams by importance gives
    an unbiased gradient of it, which no measurement has to find: so `target_share` of a batch is drawn by importance as
    far as the targets are streams, and the policy divides the rest. Where the objective is the average or the worst of
    all streams, that part is the whole batch: nothing else is asked. The part of a stream that the run would pass over
    more than once is smaller, and the same throughout: see `planned`. A bound adds its multiplier to the importance of
    its stream; see `MarginalValue`.

    Args:
        policy: The inner policy.
        target_share: Share of a batch that streams which are targets have at least, if all targets are streams.
        threshold: `z`: standard errors that would count as harm in a single comparison.
        num_kept: Measurements that are judged together, 3 or more.

    Raises:
        ValueError: If a value is outside its range.
    """

    _remembered = (
        *("_decided", "_importance", "_multipliers", "_gains", "_errors", "_num_judged"),
        *("_losses", "_lowest", "_squares", "_num_averages", "has_stopped"),
    )

    def __init__(self, policy: Policy, target_share: float = 0.75, threshold: float = 3.0, num_kept: int = 6):
        super().__init__(policy)
        check_range("target_share", target_share, 0, 1, "0 leaves all to the policy")
        check_range("threshold", threshold, 0, 100, "3 standard errors are usual")
        check_count("num_kept", num_kept, _LEAST_KEPT, "6 measurements are usual")
        self.target_share, self.threshold, self.num_kept = target_share, threshold, num_kept
        if not asked(policy.needs, Alignment):  # any metric will do
            self.needs = (Alignment(joined=True), *policy.needs)
        self.holds_bounds = True

    def start(self, mixture: Mixture) -> Decision:
        """Starts the inner policy; see `Policy.start`."""
        self._objective = mixture.objective or Objective(list(mixture.names))
        self._own, self._gains, self._errors = mixture.weights, np.zeros(0), np.zeros(0)
        self._num_samples, names = mixture.num_samples, self._objective.names
        self._target_of = np.array([names.index(name) if name in names else -1 for name in mixture.names])
        self._importance = self._objective.weights(np.full(len(names), np.nan), _SHARPNESS)
        self._multipliers, importance = Multipliers(self._objective), self._of_streams(self._importance)
        is_all = not self._objective.bounds and (importance > 0.0).all()
        self._share = 1.0 if is_all and self.target_share > 0.0 else self.target_share
        self._losses, self._lowest, self._squares = np.zeros(0), _HUGE, 0.0
        self._num_judged, self._num_averages, self.has_stopped = 0, 0, False
        decision = super().start(mixture)
        self._decided = shares(np.asarray(decision.weights))
        return self._anchored(decision, 0.0, mixture.is_active, None)

    def update(self, observation: Observation) -> Decision:
        """Passes on the inner policy's decision, or the own weights once it has harmed; see `Policy.update`."""
        decision = super().update(observation)
        if (targets := observation[Alignment]) is not None and not self.has_stopped:
            self._judge(targets, self._decided, observation)
        self._decided = shares(np.asarray(decision.weights))
        lengths = observation.tokens_per_sample
        if not self.has_stopped:
            num_samples = observation.seen.sum() / observation.progress if observation.progress > 0.0 else 0.0
            return self._anchored(decision, num_samples, observation.is_active, lengths)
        return Decision(share_out(self._own, self._own, observation.is_active & (self._own > 0.0), 0.0, lengths))

    def _anchored(
        self, decision: Decision, num_samples: float, active: BoolArray, lengths: FloatArray | None
    ) -> Decision:
        """Draws a part of the batch by the importance of the streams that are targets.

        Args:
            decision: The inner policy's.
            num_samples: Samples of the whole run, 0 if unknown.
            active: bool `[num_streams]`.
            lengths: `[num_streams]`: tokens per sample, for shares of tokens.
        """
        anchor = self._share * np.where(active & (self._own > 0.0), self._of_streams(self._importance), 0.0)
        anchor *= planned(passes(anchor * num_samples, self._num_samples), REPEAT_PASSES)
        if not anchor.any():
            return decision
        weights = anchor + max(0.0, 1.0 - anchor.sum()) * shares(np.asarray(decision.weights))
        return replace(decision, weights=share_out(weights, self._own, active & (self._own > 0.0), 0.0, lengths))

    def _of_streams(self, importance: FloatArray) -> FloatArray:
        """`[num_streams]`: the importance of the streams that are targets, 0 for the others."""
        return np.where(self._target_of >= 0, importance[self._target_of], 0.0)

    def _judge(self, targets: TargetStatistics, weights: FloatArray, observation: Observation) -> None:
        importance = self._objective.weights(targets.losses, _SHARPNESS)
        self._importance = shares(importance + self._multipliers.take(targets.losses, observation.progress))
        worth = targets.worth(self._importance)
        if worth.largest > 0.0:
            known = np.isfinite(worth.scores)
            change = (weights - self._own)[known]
            # Twice the variance: the rows of the targets are as noisy as those of the streams.
            self._gains = np.append(self._gains, change @ worth.scores[known])[-self.num_kept :]
            self._errors = np.append(self._errors, 2.0 * (change**2 @ worth.variance[known]))[-self.num_kept :]
            self._num_judged += 1
        if np.isfinite(targets.losses[importance > 0.0]).all():
            loss = float(importance @ np.where(importance > 0.0, targets.losses, 0.0))
            self._losses = np.append(self._losses, np.clip(loss, -_HUGE, _HUGE))
        reason = self._harm_by_worth() or self._harm_by_loss()
        if reason is not None:
            self.has_stopped = True
            _logger.warning(
                "Step %d: %s is stopped, and the streams' own weights return: %s.", observation.step, self.name, reason
            )

    def _harm_by_worth(self) -> str | None:
        """Says why the policy is to be stopped by the worth of its mixture; `None` if it is not."""
        count = len(self._gains)
        if count < _LEAST_KEPT:
            return None
        errors = self._standard_errors(self._num_judged) * math.sqrt(self._errors.sum()) / count
        is_harm = self._gains.mean() < -errors
        return "by the targets' gradients its mixture is worth less than they are" if is_harm else None

    def _harm_by_loss(self) -> str | None:
        """Says why the policy is to be stopped by the objective's loss; `None` if it is not."""
        if len(self._losses) < self.num_kept:
            return None
        mean, lowest = float(self._losses.mean()), self._lowest
        self._squares += float(((self._losses - mean) ** 2).sum())
        self._num_averages += 1
        variance = self._squares / (self._num_averages * (self.num_kept - 1))
        errors = self._standard_errors(self._num_averages**2) * math.sqrt(2.0 * variance / self.num_kept)
        self._lowest, self._losses = min(lowest, mean), np.zeros(0)
        has_risen = mean > lowest + _LEAST_RISE * abs(lowest) + errors
        return f"the objective's loss has risen from {lowest:.4g} to {mean:.4g}" if has_risen else None

    def _standard_errors(self, num_comparisons: int) -> float:
        return math.sqrt(self.threshold**2 + 2.0 * math.log(num_comparisons))
