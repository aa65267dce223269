"""Base class of wrappers: a policy around a policy."""

from typing import ClassVar

from mixer.measurements.measurement import Needs
from mixer.policies.contract import Decision, Mixture, Observation, Policy, Wrapped


class Wrapper(Policy):
    """A policy that changes the decisions of another one; by default it passes them on.

    It has its own needs and those of the inner policy, and the unit of that one. Set `keeps_probes` in a subclass if
    each mixture of the inner policy still applies to its own step, up to small changes; other wrappers refuse policies
    that plan probes, which would draw conclusions from mixtures that were never used.

    Args:
        policy: The inner policy.

    Raises:
        TypeError: If that is no policy.
        ValueError: If it plans probes that would not be kept.
    """

    remembered: ClassVar[tuple[str, ...]] = ("policy",)

    keeps_probes: bool = False

    def __init__(self, policy: Policy):
        if not isinstance(policy, Policy):
            raise TypeError(f"policy must be a Policy to wrap, got {type(policy).__name__}.")
        if policy.plans_probes and not self.keeps_probes:
            name = type(self).__name__
            raise ValueError(
                f"{name}: policy must allow changes of its weights, got {policy.name}, which plans probes and would "
                f"draw conclusions from mixtures that were never used. Use it without {name}; its own arguments (for "
                "Aioli: learning_rate, training_steps, num_warmup_steps) make it slower or later. If "
                f"{name} does apply each mixture to its own step, set keeps_probes = True in the class."
            )
        super().__init__(unit=policy.unit)
        self.policy = policy
        self._inner_decision: Decision | None = None
        self.needs: Needs = tuple(dict.fromkeys((*type(self).needs, *policy.needs)))
        self.plans_probes, self.min_samples = policy.plans_probes, policy.min_samples
        self.compares_losses, self.holds_bounds = policy.compares_losses, policy.holds_bounds

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
