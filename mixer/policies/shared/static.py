"""Base class of policies with a constant mixture."""

from abc import abstractmethod

from mixer.policies.contract import Decision, Mixture, Observation, Policy
from mixer.utils.arrays import FloatArray


class StaticPolicy(Policy):
    """A constant mixture, computed once from the streams.

    Args:
        unit: Whether the weights are shares of samples or of tokens.
    """

    is_static = True

    @abstractmethod
    def mixture_weights(self, mixture: Mixture) -> FloatArray:
        """Computes the weights.

        Args:
            mixture: The streams of the run.

        Returns:
            `[num_streams]`: non-negative weights, not all 0.
        """

    def start(self, mixture: Mixture) -> Decision:
        """Computes the weights of the run; see `Policy.start`."""
        self._decision = Decision(self.mixture_weights(mixture))
        return self._decision

    def update(self, observation: Observation) -> Decision:
        """Returns the same weights; see `Policy.update`."""
        return self._decision
