"""Losses and gradients for a simulated run: those that another run recorded, or none."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pandas as pd

from mixer.ledger.recorded_run import RecordedRun
from mixer.mixture.controller import Mixing
from mixer.mixture.plan import Plan
from mixer.policies.gradient_statistics import GradientStatistics
from mixer.utils.arrays import FloatArray

# Observations that are planned and need no model.
_PLANNED = frozenset({"tokens", "learning_rate"})
_NUMBERS = ("loss", "gradient_norm", "update_norm")  # of all streams


@dataclass(frozen=True)
class Seen:
    """The observations of a step, as `Mixing.observe` takes them.

    Args:
        losses: `[num_streams]`: mean loss per item, NaN if there is none.
        loss: Mean loss over all streams.
        gradient_norm: Norm of the gradient before clipping.
        update_norm: Distance by which the step moves the parameters.
        gradients: The streams' gradients, if they are measured.
        compared: `[num_streams]` by column of the ledger's `comparisons`, if losses are compared.
    """

    losses: FloatArray
    loss: float = math.nan
    gradient_norm: float = math.nan
    update_norm: float = math.nan
    gradients: GradientStatistics | None = None
    compared: Mapping[str, FloatArray] = field(default_factory=dict)


class NoLosses:
    """No observations: rules that need some hold the values that they start with.

    Args:
        mixing: The controller; its adaptive rules are made static.
    """

    def __init__(self, mixing: Mixing):
        policy, schedule = mixing.policy, mixing.schedule
        rules = {f"mixing={policy.name}": policy.needs, f"batch_size={schedule.name}": schedule.needs - _PLANNED}
        held = " and ".join(f"{rule} (it needs {', '.join(sorted(needs))})" for rule, needs in rules.items() if needs)
        if policy.needs:
            policy.is_static = True
        if schedule.needs - _PLANNED:
            schedule.is_constant = True
        self.note = (
            f"Held at its start, as only training shows the losses: {held}. Give those of a run by --losses RUN."
            if held
            else "The plans need no losses: they are those of the trained run."
        )

    def after(self, plan: Plan) -> Seen:
        """Gives no losses."""
        return Seen(np.full(len(plan.counts), np.nan))

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
        if missing := sorted((policy.needs | schedule.needs) - _PLANNED - self._recorded()):
            raise ValueError(
                f"mixing={policy.name} with batch_size={schedule.name} needs {missing}, which the run in {run.folder} "
                "did not record. Give a run with the same policy and schedule, or leave out losses."
            )
        order = [run.names.index(name) for name in names]
        tables = {"loss": run.streams["loss"], **run.compared}
        # A stream without samples in a step has the loss of its last ones.
        self._columns = {name: pd.DataFrame(own[:, order]).ffill().to_numpy() for name, own in tables.items()}
        self._interval_steps = policy.interval_steps

    def _recorded(self) -> set[str]:
        """Kinds of observations that the other run recorded."""
        run = self._run
        names = {"loss", *run.compared, *(name for name in _NUMBERS if np.isfinite(run.clock[name]).any())}
        if run.evaluations:
            names.add("evaluation_loss")
        if run.gradients and self._has_same_streams:
            names.add("gradient")
            if np.isfinite(next(iter(run.gradients.values())).variance).any():
                names |= {"gradient_variance", "gradient_noise"}
        return names

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

    def after(self, plan: Plan) -> Seen:
        """Gives the observations of a step by its plan."""
        run = self._run
        row = min(int(np.searchsorted(run.steps, plan.step)), len(run.steps) - 1)
        is_same = self._has_same_streams and run.steps[row] == plan.step
        if self._differs_from is None and not (is_same and np.array_equal(run.streams["count"][row], plan.counts)):
            self._differs_from = plan.step
        columns = {name: np.where(plan.counts > 0, values[row], np.nan) for name, values in self._columns.items()}
        numbers = {name: float(run.clock[name][row]) for name in _NUMBERS}
        return Seen(columns.pop("loss"), **numbers, gradients=self._gradients(plan), compared=columns)

    def _gradients(self, plan: Plan) -> GradientStatistics | None:
        measured = self._run.gradients if self._has_same_streams else {}
        if self._differs_from is None or not measured or plan.step % self._interval_steps:
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
