"""Losses and gradients of another run, read off its ledger."""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mixer.analysis.simulate.seen import Seen, mean_loss
from mixer.ledger.recorded_run import RecordedRun
from mixer.mixture.plan import Plan
from mixer.policies import Policy
from mixer.policies.gradient_statistics import GradientStatistics
from mixer.utils.arrays import FloatArray, Int64Array


class RecordedLosses:
    """What another run showed: of the same step, as long as plans are the same, else where streams stood as far.

    While each plan has the samples of the recorded step, what that one showed is given as it was. From the first one
    on that has not, each stream's loss is that of the recorded run when the stream had been seen as often (between two
    losses interpolated, the last one beyond its end). A gradient is the one that was measured nearest.

    Args:
        run: The other run, with the same streams.
        names: Names of the streams of this one.
        policy: The policy, for what it needs.

    Raises:
        ValueError: If the other run had other streams.
    """

    def __init__(self, run: RecordedRun, names: tuple[str, ...], policy: Policy):
        missing = [name for name in names if name not in run.names]
        if missing:
            raise ValueError(
                f"losses: {run.folder} has the streams {list(run.names)}, and nothing of {missing}. Give a run of the "
                "same streams, or assumed_losses."
            )
        self._run, self._names, self._policy = run, names, policy
        self._is_same_run = tuple(run.names) == names
        self.differs_from: int | None = None
        order = [run.names.index(name) for name in names]
        columns = {"loss": run.streams["loss"], **run.compared}
        self._columns = {name: values[:, order] for name, values in columns.items()}
        self._courses = {
            name: [_Course(seen, own) for seen, own in zip(run.streams["seen"][:, order].T, values.T, strict=True)]
            for name, values in self._columns.items()
        }
        samples = run.clock["samples"].astype(np.float64)
        self._norms = {name: _Course(samples, run.clock[name]) for name in ("gradient_norm", "update_norm")}
        self._evaluated = {name: self._evaluations_of(number) for name, number in zip(names, order, strict=True)}
        self._measured = np.array(sorted(run.gradients), dtype=np.int64)
        self._measured_at = samples[np.searchsorted(run.steps, self._measured)]

    def _evaluations_of(self, number: int) -> "_Course":
        """The evaluation losses of a stream by how often it had been seen."""
        run, name = self._run, self._run.names[number]
        points = [
            (step, loss) for step in sorted(run.evaluations) for own, loss in run.evaluations[step] if own == name
        ]
        rows = np.searchsorted(run.steps, [step for step, _ in points], side="right") - 1
        seen = np.where(rows < 0, 0, run.streams["seen"][rows, number])
        return _Course(seen, np.array([loss for _, loss in points], dtype=np.float64))

    @property
    def gives(self) -> frozenset[str]:
        """What it can show: what was measured in the other run."""
        run = self._run
        measured = {
            "loss": True,
            "gradient_norm": bool(np.isfinite(run.clock["gradient_norm"]).any()),
            "update_norm": bool(np.isfinite(run.clock["update_norm"]).any()),
            "evaluation_loss": bool(run.evaluations),
            "gradient": bool(run.gradients) and self._is_same_run,
        }
        one = next(iter(run.gradients.values()), None)
        has_variance = measured["gradient"] and one is not None and bool(np.isfinite(one.variance).any())
        measured |= {"gradient_variance": has_variance, "gradient_noise": has_variance}
        measured |= {name: name in run.compared for name in ("excess_loss", "loss_after")}
        return frozenset(name for name, is_active in measured.items() if is_active)

    @property
    def note(self) -> str:
        """Says of which run the losses are, and how far this one is the same."""
        source = f"Losses are those that {self._run.folder} recorded"
        if self.differs_from is None:
            return f"{source}, step by step: each plan is that of the recorded step."
        return (
            f"{source}: step by step before step {self.differs_from}, which has other samples; from there on "
            "those of each stream when it had been seen as often. What a model would have shown is another matter."
        )

    def after(self, plan: Plan, seen: Int64Array, tokens: Int64Array) -> Seen:
        """Shows what the recorded step did, or one nearby; see `Source.after`."""
        if self.differs_from is None and not self._has(plan, seen):
            self.differs_from = plan.step
        return self._nearby(plan, seen, tokens) if self.differs_from is not None else self._same(plan.index)

    def evaluation(self, step: int, seen: Int64Array) -> Mapping[str, float]:
        """Shows the evaluation of the same step, or losses where streams had been seen as often."""
        recorded = self._run.evaluations
        if self.differs_from is None and step in recorded:
            return dict(recorded[step])
        found = {name: self._evaluated[name].at(count) for name, count in zip(self._names, seen.tolist(), strict=True)}
        return {name: loss for name, loss in found.items() if math.isfinite(loss)}

    def _has(self, plan: Plan, seen: Int64Array) -> bool:
        run, row = self._run, plan.index
        if not self._is_same_run or row >= len(run.steps) or run.steps[row] != row + 1:
            return False
        return np.array_equal(run.streams["count"][row], plan.counts) and np.array_equal(run.streams["seen"][row], seen)

    def _same(self, row: int) -> Seen:
        clock, step = self._run.clock, row + 1
        return Seen(
            self._columns["loss"][row].copy(),
            loss=float(clock["loss"][row]),
            gradient_norm=float(clock["gradient_norm"][row]),
            gradients=self._run.gradients.get(step),
            update_norm=float(clock["update_norm"][row]),
            excess_losses=self._compared("excess_loss", row),
            losses_after=self._compared("loss_after", row),
        )

    def _compared(self, column: str, row: int) -> FloatArray | None:
        return self._columns[column][row].copy() if column in self._columns else None

    def _nearby(self, plan: Plan, seen: Int64Array, tokens: Int64Array) -> Seen:
        by_stream = {name: self._interpolated(name, plan, seen) for name in self._columns}
        norms = {name: course.at(int(seen.sum())) for name, course in self._norms.items()}
        return Seen(
            by_stream["loss"],
            loss=mean_loss(by_stream["loss"], plan.counts, tokens),
            gradients=self._gradients(plan, int(seen.sum())),
            excess_losses=by_stream.get("excess_loss"),
            losses_after=by_stream.get("loss_after"),
            **norms,
        )

    def _interpolated(self, column: str, plan: Plan, seen: Int64Array) -> FloatArray:
        """`[num_streams]`: values when streams had been seen as often, of those that have samples now."""
        values = np.full(len(seen), np.nan)
        for number in np.flatnonzero(plan.counts):
            values[number] = self._courses[column][number].at(int(seen[number]))
        return values

    def _gradients(self, plan: Plan, num_samples: int) -> GradientStatistics | None:
        """The measurement that was made nearest, as if it were of this plan's samples; where one is due."""
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


class _Course:
    """Values by how many samples came before, of those that are known."""

    def __init__(self, seen: NDArray[Any], values: FloatArray):
        known = np.isfinite(values)
        self._seen, self._values = seen[known].astype(np.float64), values[known]

    def at(self, seen: int) -> float:
        """The value after so many samples, interpolated; that of the nearest end beyond, NaN where none is known."""
        return float(np.interp(seen, self._seen, self._values)) if len(self._values) else math.nan
