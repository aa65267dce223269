"""Losses and gradients for a simulated run: those that another run recorded, or none."""

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from mixer.ledger.recorded_run import RecordedRun
from mixer.measurements import (
    EvaluationLoss,
    GradientNoise,
    GradientNorm,
    Gradients,
    GradientStatistics,
    Kind,
    LearningRate,
    Loss,
    MeanLoss,
    Measurement,
    Needs,
    Results,
    asked,
    names_of,
)
from mixer.mixture.controller import Mixing
from mixer.mixture.step_plan import StepPlan
from mixer.utils.text import listed

_COLUMNS: dict[Kind, str] = {MeanLoss: "loss", GradientNorm: "gradient_norm"}  # of the ledger's clock
_TABLES = (Gradients, GradientNoise, EvaluationLoss)  # in tables of their own


def _measured(needs: Needs) -> list[Measurement[Any]]:
    """Returns the requests that only training fulfils: the learning rate is planned."""
    return [need for need in needs if not isinstance(need, LearningRate)]


class NoLosses:
    """No observations: rules that need some hold the values that they start with.

    Args:
        mixing: The controller; its adaptive rules are made static.
    """

    def __init__(self, mixing: Mixing):
        policy, schedule = mixing.policy, mixing.schedule
        rules = {f"mixing={policy.name}": policy.needs, f"batch_size={schedule.name}": schedule.needs}
        needed = {rule: found for rule, own in rules.items() if (found := _measured(own))}
        kept = dict(zip(rules, ("the weights of its first step", "its first size"), strict=True))
        held = [
            f"{rule} is assumed to keep {kept[rule]} in the whole run (it goes by {listed(names_of(needs))}, which a "
            "trained run measures)"
            for rule, needs in needed.items()
        ]
        if _measured(policy.needs):
            policy.hold()
        if _measured(schedule.needs):
            schedule.is_constant = True
        kinds = {type(need) for needs in needed.values() for need in needs}
        hint = " --losses RUN takes what a run recorded." if kinds <= {Loss, *_COLUMNS, *_TABLES} else ""
        self.note = (
            f"Held at its start, as only training shows the losses: {'; '.join(held)}.{hint}"
            if held
            else "The plans need no losses: they are those of the trained run."
        )

    def after(self, plan: StepPlan) -> Results:
        """Gives nothing."""
        return {}

    def evaluation(self, step: int) -> Mapping[str, float]:
        """Gives no losses."""
        return {}


class RecordedLosses:
    """The losses and gradients of another run, step by step: the last ones that it recorded up to each step.

    While each plan has the samples of the recorded step, they are exactly those of this run.

    Args:
        folder: The output folder of the other run, with the same streams.
        mixing: The controller of this one.

    Raises:
        ValueError: If the other run lacks streams, or observations that the policy or the schedule needs.
    """

    def __init__(self, folder: str | Path, mixing: Mixing):
        run, names, policy, schedule = RecordedRun(folder), mixing.names, mixing.policy, mixing.schedule
        if missing := [name for name in names if name not in run.names]:
            raise ValueError(
                f"losses: {run.folder} has the streams {list(run.names)}, and nothing of {missing}. Give a run of the "
                "same streams."
            )
        self._run = run
        self._has_same_streams = run.names == names
        self._differs_from: int | None = None
        needs = _measured((*policy.needs, *schedule.needs))
        if lacking := [need for need in needs if not self._is_recorded(need)]:
            raise ValueError(
                f"mixing={policy.name} with batch_size={schedule.name} needs {names_of(lacking)}, which the run in "
                f"{run.folder} did not record. Give a run with the same policy and schedule, or leave out losses."
            )
        order = [run.names.index(name) for name in names]
        # A stream without samples in a step has the loss of its last ones.
        self._losses = pd.DataFrame(run.streams["loss"][:, order]).ffill().to_numpy()
        self._intervals = [need.interval_steps for need in asked(policy.needs, Gradients)]

    def _is_recorded(self, need: Measurement[Any]) -> bool:
        """Whether the other run recorded what is needed."""
        run, kind = self._run, type(need)
        if kind in (Gradients, GradientNoise):
            first = next(iter(run.gradients.values()), None) if self._has_same_streams else None
            has_variance = first is not None and bool(np.isfinite(first.variance).any())
            return has_variance if getattr(need, "variance", True) else first is not None
        if kind is EvaluationLoss:
            return bool(run.evaluations)
        column = _COLUMNS.get(kind, "")
        is_number = column in run.clock and bool(np.isfinite(run.clock[column]).any())
        return is_number or kind is Loss

    @property
    def note(self) -> str:
        """A sentence on the source, and on how long the plans are those of the recorded run."""
        if (interval := self._run.interval_steps) > 1:
            return f"Losses are means over {interval} steps that {self._run.folder} recorded: plans are not compared."
        source = f"Losses are those that {self._run.folder} recorded, step by step"
        if self._differs_from is None:
            return f"{source}: each plan is that of the recorded step."
        return (
            f"{source}. The plans are those of that run before step {self._differs_from}, which has other samples; "
            "from there on the losses are those of another mixture, and a model trained on this one has other losses."
        )

    def after(self, plan: StepPlan) -> Results:
        """Gives the measurements of a step by its plan."""
        run = self._run
        row = min(int(np.searchsorted(run.steps, plan.step)), len(run.steps) - 1)
        is_same = self._has_same_streams and run.steps[row] == plan.step
        if self._differs_from is None and not (is_same and np.array_equal(run.streams["count"][row], plan.counts)):
            self._differs_from = plan.step
        found: dict[Kind, Any] = {Gradients: gradients} if (gradients := self._gradients(plan)) is not None else {}
        found |= {kind: float(run.clock[column][row]) for kind, column in _COLUMNS.items()}
        return {**found, Loss: np.where(plan.counts > 0, self._losses[row], np.nan)}

    def _gradients(self, plan: StepPlan) -> GradientStatistics | None:
        measured = self._run.gradients if self._has_same_streams else {}
        if self._differs_from is None or not measured or all(plan.step % interval for interval in self._intervals):
            return measured.get(plan.step)
        last = measured[max((step for step in measured if step <= plan.step), default=min(measured))]
        counts, absent, is_alone = plan.counts, plan.counts == 0, plan.counts < 2
        return replace(
            last,
            gram=np.where(absent[:, None] | absent, math.nan, last.gram),
            variance=np.where(is_alone, math.nan, last.variance),
            squared_norm=np.where(is_alone, math.nan, last.squared_norm),
            counts=counts,
            shares=counts / counts.sum(),
        )

    def evaluation(self, step: int) -> Mapping[str, float]:
        """Gives the losses of the last evaluation that was recorded up to a step, by evaluation set."""
        at = max((at for at in self._run.evaluations if at <= step), default=None)
        return {} if at is None else dict(self._run.evaluations[at])
