"""Safeguard: back to the streams' own weights where a policy harms the objective."""

import logging

import numpy as np

from mixer.policies.contract import Decision, Mixture, Observation, Policy
from mixer.policies.objective import Objective, TargetStatistics
from mixer.policies.shared.ranges import check_count, check_range
from mixer.policies.shared.shares import share_out
from mixer.policies.shared.wrapper import Wrapper
from mixer.utils.arrays import FloatArray

_LEAST_KEPT = 3  # fewer measurements have no spread
_HUGE = 1e100
_SHARPNESS = 3.0  # of the smooth maximum, for the worst of several targets
_logger = logging.getLogger(__name__)


class Safeguard(Wrapper):
    """Follows a policy until its mixture harms the declared objective, and then returns to the streams' own weights.

    Ours. A measurement of the targets says what a sample of each stream is worth for the objective: `s_k`, with a
    standard error; see `MarginalValue`. The worth of a mixture is `Σ_k w_k s_k`. Two signs of harm end the policy for
    the rest of the run, each by more than `threshold` standard errors over the last measurements together:

    - the own weights are worth more than the policy's;
    - the objective's loss on the rows that steer has risen above its lowest mean.

    Args:
        policy: The inner policy.
        threshold: Standard errors that count as harm.
        num_kept: Measurements that are judged together, 3 or more.

    Raises:
        ValueError: If a value is outside its range.
    """

    _remembered = ("_gains", "_errors", "_losses", "_lowest", "has_stopped")

    def __init__(self, policy: Policy, threshold: float = 3.0, num_kept: int = 6):
        super().__init__(policy)
        check_range("threshold", threshold, 0, 100, "3 standard errors are usual")
        check_count("num_kept", num_kept, _LEAST_KEPT, "6 measurements are usual")
        self.threshold, self.num_kept = threshold, num_kept
        self.needs = self.needs | {"alignment"}

    def start(self, mixture: Mixture) -> Decision:
        """Starts the inner policy; see `Policy.start`."""
        self._objective = mixture.objective or Objective(list(mixture.names))
        self._own, self._gains, self._errors = mixture.weights, np.zeros(0), np.zeros(0)
        self._losses, self._lowest, self.has_stopped = np.zeros(0), _HUGE, False
        return super().start(mixture)

    def update(self, observation: Observation) -> Decision:
        """Passes on the inner policy's decision, or the own weights once it has harmed; see `Policy.update`."""
        decision = super().update(observation)
        if observation.targets is not None and not self.has_stopped:
            shares = observation.weights if observation.shares is None else observation.shares
            self._judge(observation.targets, shares, observation.step)
        if not self.has_stopped:
            return decision
        active = observation.is_active & (self._own > 0.0)
        return Decision(share_out(self._own, self._own, active, 0.0, observation.tokens_per_sample))

    def _judge(self, targets: TargetStatistics, weights: FloatArray, step: int) -> None:
        importance = self._objective.weights(targets.losses, _SHARPNESS)
        worth = targets.worth(importance)
        if worth.largest > 0.0:
            known = np.isfinite(worth.scores)
            change = (weights - self._own)[known]
            # Twice the variance: the rows of the targets are as noisy as those of the streams.
            self._gains = np.append(self._gains, change @ worth.scores[known])[-self.num_kept :]
            self._errors = np.append(self._errors, 2.0 * (change**2 @ worth.variance[known]))[-self.num_kept :]
        loss = float(importance @ np.nan_to_num(targets.losses))
        self._losses = np.append(self._losses, np.clip(loss, -_HUGE, _HUGE))[-self.num_kept :]
        reason = self._harm()
        if reason is not None:
            self.has_stopped = True
            _logger.warning("Step %d: %s is stopped, and the streams' own weights return: %s.", step, self.name, reason)

    def _harm(self) -> str | None:
        """Says why the policy is to be stopped; `None` if it is not."""
        count = len(self._gains)
        if count >= _LEAST_KEPT and self._gains.mean() < -self.threshold * np.sqrt(self._errors.sum()) / count:
            return "by the targets' gradients its mixture is worth less than they are"
        if len(self._losses) < self.num_kept:
            return None
        mean, error = float(self._losses.mean()), float(self._losses.std(ddof=1) / np.sqrt(len(self._losses)))
        self._lowest = min(self._lowest, mean)
        has_risen = mean > self._lowest + self.threshold * error
        return f"the objective's loss has risen from {self._lowest:.4g} to {mean:.4g}" if has_risen else None
