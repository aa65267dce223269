"""Reads the norm of a step's gradient."""

from mixer.loading.loaded_step import StepResult
from mixer.measurements import GradientNorm, Results, asked
from mixer.measurements.hooks.auxiliary_passes import AuxiliaryPasses
from mixer.run.hooks import Observer


class StepNorm(Observer):
    """Reads the norm that the Trainer clips by.

    Args:
        passes: The present step.
    """

    measures = (GradientNorm,)

    def __init__(self, passes: AuxiliaryPasses):
        self._run = passes.run

    def observe(self, result: StepResult) -> Results:
        """Returns the norm; see `Observer.observe`."""
        norm = self._run.gradient_norm
        return {} if norm is None else {GradientNorm: norm}


def new_hook(passes: AuxiliaryPasses) -> StepNorm | None:
    """Makes the hook, if the norm is asked for."""
    return StepNorm(passes) if asked(passes.plan.needs, GradientNorm) else None
