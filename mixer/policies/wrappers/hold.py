"""New weights at intervals."""

from mixer.policies.contract import Decision, Mixture, Observation, Policy
from mixer.policies.shared.decisions import mean_factor, with_mean_factor
from mixer.policies.shared.wrapper import Wrapper
from mixer.utils.ranges import check_count


class Hold(Wrapper):
    """Takes a new decision every `num_steps` steps and holds it in between; the inner policy observes every step.

    Args:
        policy: The inner policy.
        num_steps: Number of steps per decision.

    Raises:
        ValueError: If the number is not a whole number of at least 1.
    """

    remembered = ("_held",)

    def __init__(self, policy: Policy, num_steps: int = 20):
        super().__init__(policy)
        check_count("num_steps", num_steps, 1, "1 takes every decision")
        self.num_steps = num_steps

    def start(self, mixture: Mixture) -> Decision:
        """Holds the inner policy's first decision; see `Policy.start`."""
        self._held = super().start(mixture)
        return self._held

    def update(self, observation: Observation) -> Decision:
        """Takes the inner policy's decision when it is due; see `Policy.update`."""
        decision = super().update(observation)
        if observation.step % self.num_steps == 0:
            self._held = decision
        # The scale of the loss is the inner policy's, which knows the streams that ended meanwhile.
        return with_mean_factor(self._held, mean_factor(decision, observation.is_active), observation.is_active)
