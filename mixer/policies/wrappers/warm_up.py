"""Your weights for the first steps, then a policy."""

from mixer.policies.contract import Decision, Mixture, Observation, Policy
from mixer.policies.shared.wrapper import Wrapper
from mixer.utils.ranges import check_count


class WarmUp(Wrapper):
    """Holds your weights for the first steps; the inner policy already observes them.

    Args:
        policy: The inner policy.
        num_steps: Number of steps before its decisions apply.

    Raises:
        ValueError: If the number is negative or not a whole number.
    """

    def __init__(self, policy: Policy, num_steps: int = 100):
        super().__init__(policy)
        check_count("num_steps", num_steps, 0, "0 is no warm-up")
        self.num_steps = num_steps

    def start(self, mixture: Mixture) -> Decision:
        """Starts the inner policy and holds your weights; see `Policy.start`."""
        decision = super().start(mixture)
        self._initial = Decision(mixture.weights)
        return self._initial if self.num_steps > 0 else decision

    def update(self, observation: Observation) -> Decision:
        """Holds your weights until the warm-up is over; see `Policy.update`."""
        decision = super().update(observation)
        return decision if observation.step >= self.num_steps else self._initial
