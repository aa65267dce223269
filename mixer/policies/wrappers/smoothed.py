"""Weights that move slowly."""

import numpy as np

from mixer.policies.contract import Decision, Mixture, Observation, Policy
from mixer.policies.shared.decisions import in_batch, with_weights
from mixer.policies.shared.wrapper import Wrapper
from mixer.utils.ranges import check_decay


class Smoothed(Wrapper):
    """Moves part of the way to new weights: `w' ← decay·w' + (1 − decay)·w`.

    Around a policy with loss weights it smooths the sampling, not the objective: factors are multiplied by `w_k/w'_k`,
    so each stream keeps its part of the gradient, weight times factor; `TrustRegion` limits both. A stream with samples
    on top of the batch size loses its share of it at once, and restarts from 0.

    Args:
        policy: The inner policy.
        decay: Share of the old weights that stays at each step, in [0, 1).

    Raises:
        ValueError: If the decay is outside [0, 1).
    """

    remembered = ("_weights",)

    def __init__(self, policy: Policy, decay: float = 0.9):
        super().__init__(policy)
        check_decay("decay", decay, "0 follows at once, 0.9 moves a tenth of the way")
        self.decay = decay

    def start(self, mixture: Mixture) -> Decision:
        """Starts from the inner policy's first weights; see `Policy.start`."""
        decision = super().start(mixture)
        self._weights = decision.weights / np.sum(decision.weights)
        return with_weights(decision, self._weights, mixture.is_active)

    def update(self, observation: Observation) -> Decision:
        """Moves towards the inner policy's weights; see `Policy.update`."""
        decision = super().update(observation)
        target = decision.weights / np.sum(decision.weights)
        old = in_batch(self._weights, decision.additional)
        total = old.sum()
        self._weights = self.decay * (old / total) + (1.0 - self.decay) * target if total > 0.0 else target
        return with_weights(decision, self._weights, observation.is_active)
