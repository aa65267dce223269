"""A run's ledger as arrays, one row a step, or an interval of steps."""

import functools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from mixer.gradients.records import measurements_in
from mixer.ledger.decisions import decided_before
from mixer.ledger.evaluated_losses import recorded_objective
from mixer.ledger.folder import open_ledger, read_note
from mixer.measurements.gradients import GradientStatistics
from mixer.policies.contract import Unit
from mixer.policies.objective import Objective
from mixer.utils.arrays import Int64Array
from mixer.utils.errors import InvalidValueError
from mixer.utils.text import mixing_unit

# Values for a stream that a step did not have.
_ABSENT = {"count": 0, "tokens": 0, "labels": 0, "seen": 0, "staleness": 0, "active": False}
_MOST_RANGES = 6


class RecordedRun:
    """The steps of a run that its ledger holds in both main tables, `streams` and `clock`.

    Args:
        folder: The output folder of a trainer.

    Attributes:
        description: The run's description (see `describe_run`); empty if there is none or it is damaged.
        policy_name: Name of the policy; `None` if it is not recorded.
        names: Names of the streams, in the order of their first rows.
        interval_steps: The greatest number of steps that a row covers, 1 but for very many streams. The arrays then
            have the last step of each interval in place of every step.
        steps: int64 `[num_steps]`: numbers of the steps, ascending.
        clock: `[num_steps]` by column of the ledger's `clock`; `total` counts all samples since the row before.
        streams: `[num_steps, num_streams]` by column of the ledger's `streams`.
        has_same_streams: Whether every step had all of these streams.

    Raises:
        ValueError: If the folder does not exist, holds no run, or its ledger cannot be read.
    """

    def __init__(self, folder: str | Path):
        self.folder = Path(folder)
        self._ledger = open_ledger(folder)
        self.interval_steps = self._ledger.interval_steps
        note = read_note(self.folder)
        name, run = note.get("policy"), note.get("run")
        self.policy_name: str | None = name if isinstance(name, str) else None
        self.description: dict[str, Any] = run if isinstance(run, dict) else {}
        rows, clock = self._ledger.to_pandas(), self._ledger.clock()
        self._order = rows[["step", "stream"]]
        self.names: tuple[str, ...] = tuple(dict.fromkeys(rows["stream"]))
        # A run that is going on may have written the one table and not the other.
        self.steps: Int64Array = np.intersect1d(rows["step"].unique(), clock["step"].to_numpy())
        if not len(self.steps):
            text = f"The ledger of {self.folder} has no step with rows of both tables, streams and clock"
            raise InvalidValueError.about(
                "run", f"{text}: if it has just begun, try again; else one of the two is lost."
            )
        self._clock, self.clock = clock, self._at_steps(clock)
        self.streams = self._by_stream(rows)
        self.has_same_streams = int(rows["step"].isin(self.steps).sum()) == self.streams["count"].size

    def row_of(self, step: int) -> int:
        """Finds a step.

        Args:
            step: Its number.

        Returns:
            Its row in the arrays, or that of its interval.

        Raises:
            ValueError: If the ledger does not hold it; the message names the steps that it holds.
        """
        row = int(np.searchsorted(self.steps, step))  # of the interval that the step is in
        if row == len(self.steps) or not 0 <= self.steps[row] - step < self.interval_steps or step < 1:
            held = f"one of the steps in the ledger of {self.folder}, {self.held_steps}"
            raise InvalidValueError(option="step", expected=held, found=step)
        return row

    def amount_at(self, step: int, unit: Unit) -> float:
        """Gives the samples, tokens or labels of the run up to a step."""
        return float(self._clock[unit][self._clock["step"] <= step].max()) if step >= self._clock["step"].min() else 0.0

    @property
    def held_steps(self) -> str:
        """Numbers of the steps that the ledger holds, as a text: `1 to 5, 8 to 12`."""
        gaps = np.flatnonzero(np.diff(self.steps) > self.interval_steps)
        firsts = np.maximum(self.steps - self.interval_steps, 0) + 1
        ends = zip(firsts[[0, *(gaps + 1)]], self.steps[[*gaps, -1]], strict=True)
        ranges = [f"{first} to {last}" if first < last else f"{first}" for first, last in ends]
        left_out = f", ... ({len(ranges) - _MOST_RANGES} more parts)" if len(ranges) > _MOST_RANGES else ""
        return ", ".join(ranges[:_MOST_RANGES]) + left_out

    def names_after(self, step: int) -> tuple[str, ...]:
        """Names of the streams that the run had after a step, in its own order; a resumed run may have others."""
        at = max(step, 1)
        if self.interval_steps > 1:
            at = self.steps[np.searchsorted(self.steps[:-1], at)]
        return tuple(self._order.loc[self._order["step"] == at, "stream"])

    def decision_before(self, step: int) -> tuple[int | None, pd.DataFrame]:
        """Finds the decision that rules a step; see `decided_before`."""
        return decided_before(self._decisions, step)

    @functools.cached_property
    def _decisions(self) -> pd.DataFrame:
        return self._ledger.decisions()

    @property
    def unit(self) -> Unit:
        """The unit of the policy's weights; samples if it is not recorded."""
        return mixing_unit(self.description)

    def so_far(self, unit: Unit) -> Int64Array:
        """Returns the tokens, or labels, of each stream so far, int64 `[num_steps, num_streams]`."""
        return np.cumsum(np.nan_to_num(self.streams[unit]).astype(np.int64), axis=0)

    @functools.cached_property
    def evaluations(self) -> dict[int, list[tuple[str, float]]]:
        """Evaluation sets and their losses, by the number of steps done before."""
        by_step: dict[int, list[tuple[str, float]]] = {}
        table = self._ledger.evaluations()
        for step, name, loss in zip(*(table[column].tolist() for column in ("step", "stream", "loss")), strict=True):
            by_step.setdefault(step, []).append((name, loss))
        return by_step

    @functools.cached_property
    def objective(self) -> Objective | None:
        """The declared objective; `None` without one, or if its record is damaged."""
        try:
            return recorded_objective(self.folder, {"run": self.description})
        except ValueError:
            return None

    def objective_at(self, step: int) -> float:
        """Computes the objective by the last evaluation of each target; NaN without.

        Args:
            step: Number of steps done: later evaluations do not count.
        """
        if self.objective is None:
            return math.nan
        losses = {name: loss for at in sorted(self.evaluations) if at <= step for name, loss in self.evaluations[at]}
        rows, metrics = self._ledger.metrics(), dict[str, dict[str, float]]()
        columns = rows[rows["step"] <= step][["stream", "metric", "value"]]
        for name, metric, value in columns.itertuples(index=False):
            metrics.setdefault(name, {})[metric] = value
        return self.objective.evaluated(losses, metrics)

    @functools.cached_property
    def gradients(self) -> dict[int, GradientStatistics]:
        """Measurements of the streams' gradients, by the number of the step."""
        measured = measurements_in(self._ledger.gradients())
        return {step: statistics for step, names, statistics in measured if tuple(names) == self.names}

    def _at_steps(self, clock: pd.DataFrame) -> dict[str, NDArray[Any]]:
        """Gives the clock at the steps that have rows of streams, with the samples since the one before."""
        if self.interval_steps > 1:
            clock = clock.assign(total=clock["total"].cumsum())
        columns = {str(name): values.to_numpy() for name, values in clock[clock["step"].isin(self.steps)].items()}
        return {**columns, **({"total": np.diff(columns["total"], prepend=0)} if self.interval_steps > 1 else {})}

    def _by_stream(self, rows: pd.DataFrame) -> dict[str, NDArray[Any]]:
        """Lays rows, one a step and stream, out as arrays."""
        number = rows["stream"].map({name: number for number, name in enumerate(self.names)})
        is_known = rows["step"].isin(self.steps) & number.notna()
        rows, places = rows[is_known], number[is_known].to_numpy(dtype=np.int64)
        batches = np.searchsorted(self.steps, rows["step"].to_numpy())
        shape = (len(self.steps), len(self.names))
        arrays: dict[str, NDArray[Any]] = {}
        for name in map(str, rows.columns.drop(["step", "stream"])):
            values = rows[name].to_numpy()
            kind = values.dtype if name in _ABSENT else np.float64
            arrays[name] = np.full(shape, _ABSENT.get(name, np.nan), dtype=kind)
            arrays[name][batches, places] = values
        return arrays
