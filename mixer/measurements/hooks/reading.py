"""Measurements that only read what a step leaves behind."""

from collections.abc import Callable
from typing import Any

import numpy as np

from mixer.loading.loaded_step import StepResult
from mixer.measurements import (
    EvaluationLoss,
    EvaluationSetLoss,
    GradientNorm,
    Kind,
    LearningRate,
    Loss,
    MeanLoss,
    Rates,
    Results,
    asked,
)
from mixer.measurements.hooks.auxiliary_passes import AuxiliaryPasses
from mixer.run.hooks import Observer
from mixer.run.state import Run


def _rates(run: Run, result: StepResult) -> Rates | None:
    rate, contents = run.learning_rate, result.contents
    if rate is None:
        return None
    positions = run.mixing.schedule_positions(result.plan, contents.tokens, contents.labels)
    return Rates(*map(rate.at, positions))


_READERS: dict[Kind, Callable[[Run, StepResult], Any]] = {
    Loss: lambda _, result: np.where(np.isfinite(result.losses), result.losses, np.nan),
    MeanLoss: lambda _, result: float(result.sums[-1]),
    GradientNorm: lambda run, _: run.gradient_norm,  # by which the Trainer clips
    LearningRate: _rates,
    EvaluationLoss: lambda run, _: run.mixing.take_evaluation_losses(),  # once
    EvaluationSetLoss: lambda run, _: run.mixing.take_set_losses(),
}


class Reader(Observer):
    """Reads what is asked for, and nothing else: reading losses from a GPU waits for it.

    Args:
        kinds: What is asked for.
        run: The run.
    """

    def __init__(self, kinds: tuple[Kind, ...], run: Run):
        self.measures, self._run = kinds, run

    def observe(self, result: StepResult) -> Results:
        """Returns what there is; see `Observer.observe`."""
        found = {kind: _READERS[kind](self._run, result) for kind in self.measures}
        return {kind: value for kind, value in found.items() if value is not None}


def new_hook(passes: AuxiliaryPasses) -> Reader | None:
    """Makes the hook, if anything is asked for that can be read."""
    kinds = tuple(kind for kind in _READERS if asked(passes.plan.needs, kind))
    return Reader(kinds, passes.run) if kinds else None
