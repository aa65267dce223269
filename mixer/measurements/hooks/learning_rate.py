"""Reads the run's own learning-rate schedule."""

from mixer.loading.loaded_step import StepResult
from mixer.measurements import LearningRate, Rates, Results, asked
from mixer.measurements.hooks.auxiliary_passes import AuxiliaryPasses
from mixer.run.hooks import Observer


class ScheduledRates(Observer):
    """Reads the factors of the schedule at the last step and at the next one.

    Args:
        passes: The run.
    """

    measures = (LearningRate,)

    def __init__(self, passes: AuxiliaryPasses):
        self._run = passes.run

    def observe(self, result: StepResult) -> Results:
        """Returns the factors; see `Observer.observe`."""
        rate, contents = self._run.learning_rate, result.contents
        if rate is None:
            return {}
        positions = self._run.mixing.schedule_positions(result.plan, contents.tokens, contents.labels)
        return {LearningRate: Rates(*map(rate.at, positions))}


def new_hook(passes: AuxiliaryPasses) -> ScheduledRates | None:
    """Makes the hook, if the schedule is asked for."""
    return ScheduledRates(passes) if asked(passes.plan.needs, LearningRate) else None
