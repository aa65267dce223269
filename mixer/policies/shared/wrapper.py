"""Base class of wrappers: a policy around a policy."""

from typing import ClassVar

from mixer.measurements.measurement import Needs
from mixer.policies.contract import Decision, Mixture, Observation, Policy, Wrapped
from mixer.utils.errors import wrong_type


class Wrapper(Policy):
    """A policy that changes the decisions of another one; by default it passes them on.

    It has its own needs and those of the inner policy, and the unit of that one.

    Args:
        policy: The inner policy.

    Raises:
        TypeError: If that is no policy.
    """

    remembered: ClassVar[tuple[str, ...]] = ("policy",)

    def __init__(self, policy: Policy):
        if not isinstance(policy, Policy):
            raise wrong_type("policy", f"must be a Policy to wrap, got {type(policy).__name__}.")
        super().__init__(unit=policy.unit)
        self.policy = policy
        self._inner_decision: Decision | None = None
        self.needs: Needs = tuple(dict.fromkeys((*type(self).needs, *policy.needs)))
        self.min_samples, self.compares_losses = policy.min_samples, policy.compares_losses
        self.holds_bounds = policy.holds_bounds

    @property
    def name(self) -> str:
        """Name of the wrapper and of the inner policy; see `Policy.name`."""
        return f"{type(self).__name__}({self.policy.name})"

    def start(self, mixture: Mixture) -> Decision:
        """Starts the inner policy; see `Policy.start`."""
        self._inner_decision = self.policy.start(mixture)
        return self._inner_decision

    def update(self, observation: Observation) -> Decision:
        """Passes on the inner policy's decision; see `Policy.update`."""
        self._inner_decision = self.policy.update(observation)
        return self._inner_decision

    def wrapped(self) -> Wrapped | None:
        """Gives the inner policy; see `Policy.wrapped`."""
        return None if self._inner_decision is None else Wrapped(self.policy, self._inner_decision)
