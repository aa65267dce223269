"""A least share for every stream."""

import numpy as np

from mixer.policies.contract import Decision, Mixture, Observation, Policy
from mixer.policies.shared.decisions import in_batch, with_weights
from mixer.policies.shared.shares import resolve_least
from mixer.policies.shared.wrapper import Wrapper
from mixer.utils.arrays import BoolArray
from mixer.utils.ranges import check_range

_USUAL = 0.05


class Floor(Wrapper):
    """Keeps every stream at a least share: `w'_k = floor + (1 − K·floor)·w_k`.

    Around a policy with loss weights it changes the sampling, not the objective: factors are multiplied by `w_k/w'_k`,
    so each stream keeps its part of the gradient, weight times factor. A stream without a weight in such a policy is
    sampled, with a factor of 0. Streams with samples on top of the batch size have no share of it, and K counts the
    others.

    Args:
        policy: The inner policy.
        minimum: The least share of a stream, at most 1/K; `None` is 0.05, or 1/(2K) for more than ten streams.

    Raises:
        ValueError: If the minimum is outside [0, 1]; at the start of the run if it is above 1/K.
    """

    limits_mixture = True

    def __init__(self, policy: Policy, minimum: float | None = None):
        super().__init__(policy)
        if minimum is not None:
            check_range("minimum", minimum, 0, 1, "0 is no floor")
        self.minimum = minimum

    def start(self, mixture: Mixture) -> Decision:
        """Starts the inner policy and raises its weights; see `Policy.start`."""
        self._least = resolve_least(self.minimum, _USUAL, len(mixture.names), "Floor", "minimum")
        return self._lift(super().start(mixture), mixture.is_active)

    def update(self, observation: Observation) -> Decision:
        """Raises the inner policy's weights; see `Policy.update`."""
        return self._lift(super().update(observation), observation.is_active)

    def _lift(self, decision: Decision, active: BoolArray) -> Decision:
        shares = decision.weights / np.sum(decision.weights)
        least = in_batch(np.full(len(shares), self._least), decision.additional)
        return with_weights(decision, least + (1.0 - least.sum()) * shares, active)
