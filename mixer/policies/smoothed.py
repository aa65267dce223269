"""Weights that move slowly."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from mixer.policies.base import Decision, Mixture, Observation, Policy
from mixer.policies.wrapper import Wrapper


class Smoothed(Wrapper):
    """Moves only part of the way to new weights: `w' ← decay·w' + (1 − decay)·w`.

    Args:
        policy: The inner policy.
        decay: Share of the old weights that stays at each update, in [0, 1).

    Raises:
        ValueError: If the decay is outside [0, 1).
    """

    def __init__(self, policy: Policy, decay: float = 0.9):
        super().__init__(policy)
        if not 0.0 <= decay < 1.0:
            raise ValueError(f"decay must be in [0, 1), got {decay}.")
        self.decay = decay

    def start(self, mixture: Mixture) -> Decision:
        """Starts from the inner policy's first weights; see `Policy.start`."""
        decision = super().start(mixture)
        self._weights = decision.weights / np.sum(decision.weights)
        return replace(decision, weights=self._weights)

    def update(self, observation: Observation) -> Decision:
        """Moves towards the inner policy's weights; see `Policy.update`."""
        decision = super().update(observation)
        target = decision.weights / np.sum(decision.weights)
        self._weights = self.decay * self._weights + (1.0 - self.decay) * target
        return replace(decision, weights=self._weights)

    def state_dict(self) -> dict[str, Any]:
        """Gives the smoothed weights too; see `Policy.state_dict`."""
        return {**super().state_dict(), "weights": self._weights.tolist()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes up the smoothed weights too; see `Policy.load_state_dict`."""
        super().load_state_dict(state)
        self._weights = np.array(state["weights"], dtype=np.float64)
