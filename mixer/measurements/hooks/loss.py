"""Reads training losses off a step."""

from typing import Any

import numpy as np

from mixer.loading.loaded_step import StepResult
from mixer.measurements import Kind, Loss, MeanLoss, Results, asked
from mixer.measurements.hooks.auxiliary_passes import AuxiliaryPasses
from mixer.run.hooks import Observer


class StepLosses(Observer):
    """Reads those training losses that are asked for: reading from a GPU waits for it.

    Args:
        kinds: The requests.
    """

    def __init__(self, kinds: tuple[Kind, ...]):
        self.measures = kinds

    def observe(self, result: StepResult) -> Results:
        """Returns the losses; see `Observer.observe`."""
        read: dict[Kind, Any] = {}
        if Loss in self.measures:
            read[Loss] = np.where(np.isfinite(result.losses), result.losses, np.nan)
        if MeanLoss in self.measures:
            read[MeanLoss] = float(result.sums[-1])
        return read


def new_hook(passes: AuxiliaryPasses) -> StepLosses | None:
    """Makes the hook, if losses are asked for."""
    kinds = tuple(kind for kind in (Loss, MeanLoss) if asked(passes.plan.needs, kind))
    return StepLosses(kinds) if kinds else None
