"""A stand-in for a policy that searches for weights against a reference model."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mixer import Decision, Mixture, Observation, Policy


class Averaging(Policy):
    """Multiplies weights by the exponentials of excess losses, and averages them over the run."""

    needs = frozenset({"excess_loss"})

    def __init__(self, step_size: float = 1.0, reference_losses: list[float] | None = None, unit: Any = "samples"):
        super().__init__(unit=unit)
        self.step_size = step_size
        if reference_losses is not None:
            self.needs = frozenset({"loss"})

    def start(self, mixture: Mixture) -> Decision:
        self.weights, self.sums = mixture.weights, np.zeros(len(mixture.names))
        return Decision(self.weights)

    def update(self, observation: Observation) -> Decision:
        assert observation.excess_losses is not None
        raised = self.weights * np.exp(self.step_size * np.nan_to_num(observation.excess_losses))
        self.weights = raised / raised.sum()
        self.sums = self.sums + self.weights
        return Decision(self.weights)

    @property
    def averaged_weights(self) -> NDArray[np.float64]:
        average: NDArray[np.float64] = self.sums / self.sums.sum()
        return average

    def state_dict(self) -> dict[str, Any]:
        return {"weights": self.weights.tolist(), "sums": self.sums.tolist()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self.weights, self.sums = np.array(state["weights"]), np.array(state["sums"])
