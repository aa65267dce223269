"""Hands on the losses of evaluations."""

from mixer.loading.loaded_step import StepResult
from mixer.measurements import EvaluationLoss, Results, asked
from mixer.measurements.hooks.auxiliary_passes import AuxiliaryPasses
from mixer.run.hooks import Observer


class EvaluatedLosses(Observer):
    """Hands on the losses of evaluations since the last step, which the mixture keeps and saves.

    Args:
        passes: The run.
    """

    measures = (EvaluationLoss,)

    def __init__(self, passes: AuxiliaryPasses):
        self._run = passes.run

    def observe(self, result: StepResult) -> Results:
        """Returns the losses, once; see `Observer.observe`."""
        losses = self._run.mixing.take_evaluation_losses()
        return {} if losses is None else {EvaluationLoss: losses}


def new_hook(passes: AuxiliaryPasses) -> EvaluatedLosses | None:
    """Makes the hook, if evaluations are asked for."""
    return EvaluatedLosses(passes) if asked(passes.plan.needs, EvaluationLoss) else None
