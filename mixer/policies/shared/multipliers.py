"""Multipliers of an objective's bounds, by dual ascent."""

import numpy as np

from mixer.policies.objective import Objective
from mixer.utils.arrays import FloatArray
from mixer.utils.saved_state import HasState

BOUND_RATE = 1.0  # a run has few measurements: at 0.1 a bound was not kept on rows that steer
_MOST = 4.0  # of a bound: the objective's own weights add up to 1


class Multipliers(HasState):
    """Weights of bounded sets' losses beside the objective's own.

    Each grows while its set's loss is above the bound, relative to it, and falls while it is below.

    Args:
        objective: The objective, with bounds relative to the first loss that is measured.
        rate: Growth at a measurement of a loss that is above its bound by 1 %.
    """

    _remembered = ("_values", "_first_losses")

    def __init__(self, objective: Objective, rate: float = BOUND_RATE):
        self._objective, self._rate = objective, rate
        self._values, self._first_losses = np.zeros(len(objective.names)), np.full(len(objective.names), np.nan)

    def take(self, losses: FloatArray) -> FloatArray:
        """Takes a step of dual ascent.

        Args:
            losses: `[num_targets]`: measured losses; those that are not finite are ignored.

        Returns:
            `[num_targets]`: the multipliers, 0 for sets without a bound.
        """
        is_new = np.isnan(self._first_losses) & np.isfinite(losses)
        self._first_losses[is_new] = losses[is_new]
        for place, name in enumerate(self._objective.names):
            if name in self._objective.bounds:
                excess = losses[place] / (self._objective.bounds[name] * self._first_losses[place]) - 1.0
                grown = self._values[place] + self._rate * 100.0 * excess
                self._values[place] = np.clip(grown, 0.0, _MOST) if np.isfinite(grown) else 0.0
        return self._values
