"""ForkTest: a policy is followed as long as forks of the run show that its mixture does the objective good."""

import logging

from mixer.measurements import Forks
from mixer.policies.contract import Decision, Mixture, Observation, Policy, Terms
from mixer.policies.marginal_value import MarginalValue
from mixer.policies.shared.shares import share_out
from mixer.policies.shared.wrapper import Wrapper
from mixer.policies.wrappers.safeguard import Safeguard
from mixer.utils.ranges import check_range

_logger = logging.getLogger(__name__)


class ForkTest(Wrapper):
    """Follows a policy as long as forks of the run show that its mixture does the declared objective good.

    Ours. At half and at three quarters of the run two short forks go on from the present weights, one by the policy's
    present mixture and one by your weights, both with a learning rate that falls to 0. They share the order
    of every stream and all random numbers. The development rows give the mean difference of the objective's loss, and
    its standard error. The policy is followed on if the lower bound of the gain, `threshold` standard errors below it,
    is not below 0. Otherwise the rest of the run has your weights.

    Args:
        policy: The inner policy; `None` for that of `mixing="auto"`.
        threshold: Standard errors from the gain to its lower bound; 1.645 has 95 % of normal errors above it. Below 0
            the policy is left only if it is surely worse.
        at: Shares of the run after which there are forks.
        share: Share of the run's work that all forks together take at most.

    Raises:
        ValueError: If a value is outside its range.
    """

    remembered = ("_is_followed", "_gain", "_error")

    def __init__(
        self,
        policy: Policy | None = None,
        threshold: float = 1.645,
        at: tuple[float, ...] = (0.5, 0.75),
        share: float = 0.1,
    ):
        super().__init__(Safeguard(MarginalValue()) if policy is None else policy)
        check_range("threshold", threshold, -100, 100, "1.645 is a bound of 95 %")
        for place in at:
            check_range("at", place, 0, 1, "0.5 is half of the run")
        check_range("share", share, 0, 0.5, "0.1 is a tenth of the run's work")
        self.threshold, self.at, self.share = threshold, tuple(at), share
        self.needs = (*self.needs, Forks(self.at, share))

    def start(self, mixture: Mixture) -> Decision:
        """Starts the inner policy; see `Policy.start`."""
        self._own = mixture.weights
        self._is_followed, self._gain, self._error = True, 0.0, 0.0
        return super().start(mixture)

    def explain(self) -> Terms:
        """Gives whether the policy is followed, and the last comparison of forks; see `Policy.explain`."""
        return {"followed": float(self._is_followed), "gain of its fork": self._gain, "standard error": self._error}

    def update(self, observation: Observation) -> Decision:
        """Passes on the inner policy's decision while it is followed; see `Policy.update`."""
        decision = super().update(observation)
        if (found := observation[Forks]) is not None:
            self._judge(*found, observation.step)
        if self._is_followed:
            return decision
        active = observation.is_active & (self._own > 0.0)
        return Decision(share_out(self._own, self._own, active, 0.0, observation.tokens_per_sample))

    def _judge(self, gain: float, error: float, step: int) -> None:
        """Decides whether the policy is followed on, by the gain of its fork and the standard error."""
        self._gain, self._error = gain, error
        self._is_followed = gain >= self.threshold * error
        _logger.warning(
            "Step %d: after a fork by %s the objective's loss is lower by %.4g ± %.2g than after one by the streams' "
            "own weights, so %s.",
            *(step, self.policy.name, gain, error),
            "the run keeps following it" if self._is_followed else "these apply for the rest of the run",
        )
