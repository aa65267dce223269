"""Multipliers of an objective's bounds, by dual ascent."""

import math

import numpy as np

from mixer.policies.objective import Objective
from mixer.utils.arrays import FloatArray
from mixer.utils.saved_state import HasState

BOUND_RATE = 1.0  # a run has few measurements: at 0.1 a bound was not kept on development rows
_MOST = 4.0  # of a bound: the objective's own weights add up to 1


class Multipliers(HasState):
    """Weights of bounded sets' losses beside the objective's own.

    Each grows while its set's loss is above the bound, relative to it, and falls while it is below. A bound is for the
    end of the run, and a high learning rate lifts losses that fall again as it decays: so a multiplier moves by the
    square of the run's progress.

    Args:
        objective: The objective, with bounds relative to the first loss that is measured.
        rate: Growth at a measurement of a loss that is above its bound by 1 %, at the end of the run.
    """

    remembered = ("_values", "_first_losses")

    def __init__(self, objective: Objective, rate: float = BOUND_RATE):
        self._objective, self._rate = objective, rate
        self._values, self._first_losses = np.zeros(len(objective.names)), np.full(len(objective.names), np.nan)

    def take(self, losses: FloatArray, progress: float) -> FloatArray:
        """Takes a step of dual ascent.

        Args:
            losses: `[num_targets]`: measured losses; NaN is ignored, and an infinite one is far above its bound.
            progress: Completed share of the run, in [0, 1].

        Returns:
            `[num_targets]`: the multipliers, 0 for sets without a bound.
        """
        is_new = np.isnan(self._first_losses) & np.isfinite(losses) & (losses > 0.0)
        self._first_losses[is_new] = losses[is_new]
        rate = 100.0 * self._rate * progress**2
        for place, name in enumerate(self._objective.names):
            loss, first = float(losses[place]), float(self._first_losses[place])
            if name in self._objective.bounds and not math.isnan(loss + first):
                excess = loss / first / self._objective.bounds[name] - 1.0
                self._values[place] = np.clip(self._values[place] + rate * excess, 0.0, _MOST)
        return self._values
