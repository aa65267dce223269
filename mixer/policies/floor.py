"""A least share for every stream."""

from dataclasses import replace

import numpy as np

from mixer.policies.base import Decision, Mixture, Observation, Policy
from mixer.policies.wrapper import Wrapper


class Floor(Wrapper):
    """Keeps every stream at a least share: `w'_k = floor + (1 − K·floor)·w_k`.

    Args:
        policy: The inner policy.
        minimum: The least share of a stream, at most 1/K.

    Raises:
        ValueError: If the minimum is outside [0, 1]; at the start of the run if it is above 1/K.
    """

    keeps_probes = True

    def __init__(self, policy: Policy, minimum: float = 0.05):
        super().__init__(policy)
        if not 0.0 <= minimum <= 1.0:
            raise ValueError(f"minimum must be in [0, 1], got {minimum}.")
        self.minimum = minimum

    def start(self, mixture: Mixture) -> Decision:
        """Starts the inner policy and lifts its weights; see `Policy.start`."""
        if self.minimum * len(mixture.names) > 1.0 + 1e-12:
            raise ValueError(f"Floor: {self.minimum} for each of {len(mixture.names)} streams is more than 1 in all.")
        return self._lift(super().start(mixture))

    def update(self, observation: Observation) -> Decision:
        """Lifts the inner policy's weights; see `Policy.update`."""
        return self._lift(super().update(observation))

    def _lift(self, decision: Decision) -> Decision:
        shares = decision.weights / np.sum(decision.weights)
        return replace(decision, weights=self.minimum + (1.0 - self.minimum * len(shares)) * shares)
