"""Losses and gradients for a simulated run: those that another run recorded, or none."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mixer.ledger.recorded_run import RecordedRun
from mixer.mixture.controller import Mixing
from mixer.mixture.plan import Plan
from mixer.policies.gradient_statistics import GradientStatistics
from mixer.utils.arrays import FloatArray, Int64Array

_Course = Callable[[float], float]
# Observations that are planned and need no model.
_PLANNED = frozenset({"tokens", "learning_rate"})


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
        self._held = {rule: sorted(needs) for rule, needs in rules.items() if needs}
        if policy.needs:
            policy.is_static = True
        if schedule.needs - _PLANNED:
            schedule.is_constant = True

    @property
    def note(self) -> str:
        """A sentence on the source."""
        if not self._held:
            return "The plans need no losses: they are those of the trained run."
        held = " and ".join(f"{rule} (it needs {', '.join(needs)})" for rule, needs in self._held.items())
        return f"Held at its start, as only training shows the losses: {held}. Give those of a run by --losses RUN."

    def after(self, plan: Plan, seen: Int64Array, tokens: Int64Array) -> Seen:
        """Gives no losses."""
        return Seen(np.full(len(plan.counts), np.nan))

    def evaluation(self, step: int, seen: Int64Array) -> Mapping[str, float]:
        """Gives no losses."""
        return {}


class RecordedLosses:
    """The losses and gradients of another run.

    While each plan has the samples of the recorded step, the observations are those of that step. From the first
    plan on that differs, each stream's loss is the recorded one at which the stream had been seen as often
    (interpolated; the last one beyond the end), and a gradient is the nearest measurement.

    Args:
        folder: The output folder of the other run, with the same streams.
        mixing: The controller of this one.

    Raises:
        ValueError: If the other run lacks streams, or observations that the policy or the schedule needs.
    """

    def __init__(self, folder: str | Path, mixing: Mixing):
        run, names = RecordedRun(folder), mixing.names
        if missing := [name for name in names if name not in run.names]:
            raise ValueError(
                f"losses: {run.folder} has the streams {list(run.names)}, and nothing of {missing}. Give a run of the "
                "same streams."
            )
        self._run, self._names, self._policy = run, names, mixing.policy
        self._is_same_run = run.names == names
        self._check_needs(mixing)
        self._differs_from: int | None = None
        order = [run.names.index(name) for name in names]
        self._columns = {
            name: values[:, order] for name, values in {"loss": run.streams["loss"], **run.compared}.items()
        }
        self._courses = {
            name: [_course(seen, own) for seen, own in zip(run.streams["seen"][:, order].T, values.T, strict=True)]
            for name, values in self._columns.items()
        }
        samples = run.clock["samples"].astype(np.float64)
        self._norms = {name: _course(samples, run.clock[name]) for name in ("gradient_norm", "update_norm")}
        self._evaluated = {name: self._evaluations_of(number) for name, number in zip(names, order, strict=True)}
        self._measured = np.array(sorted(run.gradients), dtype=np.int64)
        self._measured_at = samples[np.searchsorted(run.steps, self._measured)]

    def _check_needs(self, mixing: Mixing) -> None:
        missing = sorted((mixing.policy.needs | mixing.schedule.needs) - _PLANNED - self._recorded())
        if missing:
            raise ValueError(
                f"mixing={mixing.policy.name} with batch_size={mixing.schedule.name} needs {missing}, which the run in "
                f"{self._run.folder} did not record. Give a run with the same policy and schedule, or leave out losses."
            )

    def _recorded(self) -> set[str]:
        """Kinds of observations that the other run recorded."""
        run = self._run
        names = {"loss", *run.compared}
        names |= {name for name in ("gradient_norm", "update_norm") if np.isfinite(run.clock[name]).any()}
        if run.evaluations:
            names.add("evaluation_loss")
        if run.gradients and self._is_same_run:
            names.add("gradient")
            if np.isfinite(next(iter(run.gradients.values())).variance).any():
                names |= {"gradient_variance", "gradient_noise"}
        return names

    def _evaluations_of(self, number: int) -> _Course:
        run, evaluations = self._run, sorted(self._run.evaluations.items())
        points = [(step, loss) for step, own in evaluations for name, loss in own if name == run.names[number]]
        steps, losses = np.array(points, dtype=np.float64).reshape(-1, 2).T
        seen = np.append(0, run.streams["seen"][:, number])
        return _course(seen[np.searchsorted(run.steps, steps, side="right")], losses)

    @property
    def note(self) -> str:
        """A sentence on the source, and on how long the plans are those of the recorded run."""
        source = f"Losses are those that {self._run.folder} recorded"
        if self._differs_from is None:
            return f"{source}, step by step: each plan is that of the recorded step."
        return (
            f"{source}: step by step before step {self._differs_from}, which has other samples; from there on "
            "those of each stream when it had been seen as often. A model trained on this mixture has other losses."
        )

    def after(self, plan: Plan, seen: Int64Array, tokens: Int64Array) -> Seen:
        """Gives the observations of a step.

        Args:
            plan: Its plan.
            seen: int64 `[num_streams]`: samples so far, those of the plan included.
            tokens: int64 `[num_streams]`: its tokens.

        Returns:
            The observations.
        """
        if self._differs_from is None and not self._has(plan, seen):
            self._differs_from = plan.step
        return self._same(plan.index) if self._differs_from is None else self._nearby(plan, seen, tokens)

    def evaluation(self, step: int, seen: Int64Array) -> Mapping[str, float]:
        """Gives the losses of an evaluation after a step, by stream; without those that are not known."""
        recorded = self._run.evaluations
        if self._differs_from is None and step in recorded:
            return dict(recorded[step])
        losses = {name: self._evaluated[name](count) for name, count in zip(self._names, seen.tolist(), strict=True)}
        return {name: loss for name, loss in losses.items() if math.isfinite(loss)}

    def _has(self, plan: Plan, seen: Int64Array) -> bool:
        run, row = self._run, plan.index
        if not self._is_same_run or row >= len(run.steps) or run.steps[row] != row + 1:
            return False
        return np.array_equal(run.streams["count"][row], plan.counts) and np.array_equal(run.streams["seen"][row], seen)

    def _same(self, row: int) -> Seen:
        columns = {name: values[row].copy() for name, values in self._columns.items()}
        numbers = {name: float(self._run.clock[name][row]) for name in ("loss", "gradient_norm", "update_norm")}
        gradients = self._run.gradients.get(row + 1)
        return Seen(columns.pop("loss"), **numbers, gradients=gradients, compared=columns)

    def _nearby(self, plan: Plan, seen: Int64Array, tokens: Int64Array) -> Seen:
        num_samples = int(seen.sum())
        places = np.where(plan.counts > 0, seen, np.nan)
        columns = {
            name: np.array([course(place) for course, place in zip(courses, places, strict=True)])
            for name, courses in self._courses.items()
        }
        losses, gradients = columns.pop("loss"), self._gradients(plan, num_samples)
        numbers = {name: course(num_samples) for name, course in self._norms.items()}
        numbers["loss"] = _mean_loss(losses, plan.counts, tokens)
        return Seen(losses, **numbers, gradients=gradients, compared=columns)

    def _gradients(self, plan: Plan, num_samples: int) -> GradientStatistics | None:
        """The nearest measurement, as if it were of this plan's samples; `None` if none is due."""
        if not len(self._measured) or plan.step % self._policy.interval_steps:
            return None
        nearest = int(np.argmin(np.abs(self._measured_at - num_samples)))
        measured, counts = self._run.gradients[int(self._measured[nearest])], plan.counts
        absent = counts == 0
        gram = measured.gram.copy()
        gram[absent], gram[:, absent] = math.nan, math.nan
        return replace(
            measured,
            gram=gram,
            variance=np.where(counts > 1, measured.variance, math.nan),
            squared_norm=np.where(counts > 1, measured.squared_norm, math.nan),
            counts=counts,
            shares=counts / max(int(counts.sum()), 1),
        )


def _mean_loss(losses: FloatArray, counts: Int64Array, tokens: Int64Array) -> float:
    """Mean loss per token, or per sample without tokens; NaN if no loss is known."""
    amounts = np.where(np.isfinite(losses), tokens if tokens.any() else counts, 0)
    return float(np.nansum(losses * amounts) / amounts.sum()) if amounts.any() else math.nan


def _course(seen: NDArray[Any], values: FloatArray) -> _Course:
    """Interpolates values over the number of samples before; NaN if none is known, or for a NaN."""
    known = np.isfinite(values)
    if not known.any():
        return lambda _: math.nan
    return partial(np.interp, xp=seen[known].astype(np.float64), fp=values[known])
