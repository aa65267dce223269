"""A run, read from its ledger: what reports, comparisons, explanations and fits know of it."""

import copy
import functools
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from mixer.ledger.decisions import decided_before
from mixer.ledger.evaluated_losses import mean_loss, recorded_objective, recorded_weights, worst_loss
from mixer.ledger.folder import open_ledger, read_note
from mixer.measurements.gradients import GradientStatistics
from mixer.policies.contract import UNITS, Unit
from mixer.policies.objective import Objective
from mixer.tools.records.clock import Columns, by_stream, columns_of, on_clock
from mixer.tools.records.gradient_tables import COLUMNS as GRADIENTS, Cosines, Measured, measurements, read_gradients
from mixer.utils.errors import InvalidValueError
from mixer.utils.text import mixing_unit, rule_in_words

# Other columns are not read, to save time and memory.
_CLOCK = [
    "step", "samples", "tokens", "epoch", "progress", "batch_size", "total", "learning_rate", "learning_rate_factor",
    "loss", "gradient_norm", "labels",
]  # fmt: skip
_STREAMS = [
    "step", "stream", "weight", "policy_weight", "count", "items", "loss", "tokens", "seen", "coverage", "epoch",
    "active", "skipped", "labels",
]  # fmt: skip
_OF_FIGURES = ["step", "stream", "weight", "policy_weight", "count", "items", "loss", "coverage", "tokens", "labels"]
_OF_ARRAYS = ["step", "stream", "loss_weight", "staleness", "owed"]  # which only explanations take
_PASSES = {"epoch": "passes"}  # the stream's own, beside those of the clock
_TIMINGS = ["step", "hits", "misses", "load_seconds", "train_seconds", "probe_seconds"]
# Values for a stream that a step did not have.
_ABSENT = {"count": 0, "tokens": 0, "labels": 0, "seen": 0, "staleness": 0, "active": False}
_DERIVED = ("row_clock", "figures", "arrays", "stream_columns", "evaluation_columns", "caps", "buffers")
_TENTH = 0.1  # of the steps, for losses of training
_MOST_RANGES = 6

Results = tuple[dict[str, float], dict[str, dict[str, float]]]  # losses by set; metrics by set and name


class Run:
    """A finished or running run. A table is read when it is first asked for; all have the data clock's position.

    Args:
        folder: The output folder of a trainer.
        name: Its name in texts and tables; that of the folder if empty.

    Attributes:
        description: The run's description of itself (see `describe_run`); empty if there is none or it is damaged.
        interval_steps: Greatest number of steps that a row of a stream covers, 1 but for very many streams.
        note: Content of `ledger.json`.

    Raises:
        ValueError: If the folder holds no run, or its ledger has no step yet or cannot be read.
    """

    def __init__(self, folder: str | Path, name: str = ""):
        self.folder = Path(folder)
        self.name = name or self.folder.name
        self._ledger = open_ledger(folder)
        self.interval_steps = self._ledger.interval_steps
        self.note = read_note(self.folder)
        described = self.note.get("run")
        self.description: dict[str, Any] = described if isinstance(described, dict) else {}

    def but(self, **values: Any) -> "Run":
        """Copies the run with other values of attributes."""
        changed = copy.copy(self)
        for name in _DERIVED:
            vars(changed).pop(name, None)
        vars(changed).update(values)
        return changed

    @functools.cached_property
    def clock(self) -> pd.DataFrame:
        """The ledger's table `clock`, one row per step."""
        clock: pd.DataFrame = self._ledger.read("clock", _CLOCK).to_pandas()
        return clock

    @functools.cached_property
    def streams(self) -> Mapping[str, pd.DataFrame]:
        """By stream, one row per step (or interval): columns of the ledger's `streams`; `passes` is its own epochs.

        Rows that a running run adds after the clock was read are left out. Prompts of rounds have no loss: no items.
        """
        clock, rows = self.clock, self._ledger.read("streams", _STREAMS)
        streams = by_stream(rows.rename_columns([_PASSES.get(name, name) for name in _STREAMS]), clock)
        if not streams:
            text = f"The ledger of {self.folder} has no step with rows of both tables, streams and clock"
            raise InvalidValueError.about(
                "run", f"{text}: if it has just begun, try again later; else one of the two is lost."
            )
        return {name: rows.assign(items=0) for name, rows in streams.items()} if self.rewards else streams

    @functools.cached_property
    def timings(self) -> pd.DataFrame:
        """One row per step: hits, misses, load_seconds, train_seconds (without probe_seconds) and probe_seconds."""
        rows: pd.DataFrame = self._ledger.read("timings", _TIMINGS).to_pandas()
        return on_clock(rows.assign(train_seconds=rows["train_seconds"] - rows["probe_seconds"]), self.clock)

    @functools.cached_property
    def evaluations(self) -> Mapping[str, pd.DataFrame]:
        """By evaluation set, one row an evaluation: step, loss."""
        return by_stream(self._ledger.read("evaluations"), self._clock_from_start)

    @functools.cached_property
    def stream_columns(self) -> dict[str, Columns]:
        """By stream, the columns of its table in `streams`, for what looks at each of very many."""
        return columns_of(self.streams)

    @functools.cached_property
    def evaluation_columns(self) -> dict[str, Columns]:
        """By evaluation set, the columns of its table in `evaluations`."""
        return columns_of(self.evaluations)

    @functools.cached_property
    def metrics(self) -> Mapping[str, pd.DataFrame]:
        """By evaluation set, one row an evaluation and metric: step, metric, value."""
        return by_stream(self._ledger.read("metrics"), self._clock_from_start)

    @property
    def _clock_from_start(self) -> pd.DataFrame:
        start = pd.DataFrame({"step": [0], "epoch": [0.0], "samples": [0]})  # an evaluation may come before any step
        return pd.concat([start, self.clock[["step", "epoch", "samples"]]])

    @functools.cached_property
    def memories(self) -> Mapping[str, pd.DataFrame]:
        """By replay stream, entries of the buffer: step, source, entries."""
        return by_stream(self._ledger.read("memories"), self.clock)

    @functools.cached_property
    def terms(self) -> Mapping[str, pd.DataFrame]:
        """By method, what it added to the loss at each log entry: step, value."""
        return by_stream(self._ledger.read("terms").rename_columns(["step", "stream", "value"]), self.clock)

    @functools.cached_property
    def rewards(self) -> Mapping[str, pd.DataFrame]:
        """By stream, one row per round of generation that had a prompt of it; see `Ledger.rewards`."""
        found = by_stream(self._ledger.read("rewards"), self.clock)
        return {name: rows[rows["groups"] > 0] for name, rows in found.items() if rows["groups"].any()}

    @functools.cached_property
    def decisions(self) -> pd.DataFrame:
        """The ledger's table `decisions`."""
        return self._ledger.decisions()

    @functools.cached_property
    def _measured(self) -> Measured:
        return read_gradients(self._ledger.read("gradients", GRADIENTS), self.clock)

    @functools.cached_property
    def gradients(self) -> Mapping[str, pd.DataFrame]:
        """By stream, one row a measurement of its gradient: step, squared_norm, variance."""
        # A running run may have measured a stream of which it has written nothing else yet.
        measured = self._measured[0]
        return {name: rows for name, rows in measured.items() if name in self.streams}

    @functools.cached_property
    def noise(self) -> pd.DataFrame:
        """One row a measurement of the mixture's gradient: step, signal, noise; see `GradientStatistics.noise`."""
        return self._measured[1]

    @functools.cached_property
    def cosines(self) -> Cosines | None:
        """Cosines between the streams' gradients; `None` without any."""
        return self._measured[2]

    @functools.cached_property
    def measurements(self) -> dict[int, GradientStatistics]:
        """Measurements of the gradients of all streams, by step."""
        found = measurements(self._ledger.read("gradients", GRADIENTS))
        return {step: statistics for step, names, statistics in found if names == list(self.streams)}

    @functools.cached_property
    def eval_weights(self) -> dict[str, float] | None:
        """Weights of the sets in their mean loss, if any."""
        return recorded_weights(self.folder, self.note)

    @functools.cached_property
    def objective(self) -> Objective | None:
        """The declared objective, or `None`."""
        return recorded_objective(self.folder, self.note)

    @property
    def policy_name(self) -> str | None:
        """Name of the policy's class; `None` if it is not recorded."""
        name = self.note.get("policy")
        return name if isinstance(name, str) else None

    @property
    def policy(self) -> str:
        """Name of the policy and those that it wraps, with its unit; empty if unknown."""
        return rule_in_words(self.description["mixing"]) if "mixing" in self.description else ""

    @property
    def unit(self) -> Unit:
        """What the policy's weights are shares of; samples if it is not recorded."""
        return mixing_unit(self.description)

    @property
    def last_step(self) -> int:
        """Number of the last step that has rows."""
        return int(self._rows["step"].max())

    @property
    def development_rows(self) -> dict[str, int]:
        """Number of development rows by evaluation set."""
        rows = self.description.get("development_rows")
        return rows if isinstance(rows, dict) else {}

    @functools.cached_property
    def caps(self) -> dict[str, float]:
        """Caps on passes by stream, without streams that have none."""
        caps = {row["name"]: _most_passes(row) for row in self.description.get("streams", [])}
        return {name: cap for name, cap in caps.items() if cap is not None}

    @functools.cached_property
    def buffers(self) -> set[str]:
        """Names of the streams that are replay buffers, which exist to be repeated."""
        described = {row["name"] for row in self.description.get("streams", []) if row.get("kind") == "memory"}
        return described | set(self.memories)

    def is_wanted(self, name: str) -> bool:
        """Whether the run is for this stream or evaluation set: for all of them without a declared objective."""
        return self.objective is None or name in self.objective.names

    def until(self, step: int) -> "Run":
        """Copies the run without the evaluations after a number of steps."""
        cut = {
            table: {name: rows[rows["step"] <= step] for name, rows in sets.items() if rows["step"].iloc[0] <= step}
            for table, sets in (("evaluations", self.evaluations), ("metrics", self.metrics))
        }
        return self.but(**cut)

    def losses(self, place: int = -1) -> dict[str, float]:
        """Gives the loss of each set at its first evaluation (place 0), its last (−1) or another."""
        return {name: float(columns["loss"][place]) for name, columns in self.evaluation_columns.items()}

    def results(self, place: int = -1) -> Results:
        """Gives the losses and metrics of each set; see `losses`."""
        metrics = {
            name: {str(metric): float(own["value"].iloc[place]) for metric, own in rows.groupby("metric", sort=False)}
            for name, rows in self.metrics.items()
        }
        return self.losses(place), metrics

    def mean_loss(self, place: int = -1) -> float:
        """Returns `eval_loss` of an evaluation; see `losses`."""
        return mean_loss(self.losses(place), self.eval_weights)

    def worst_loss(self, place: int = -1) -> float:
        """Returns `eval_worst_loss` of an evaluation; see `losses`."""
        return worst_loss(self.losses(place))

    def objective_value(self, place: int = -1) -> float:
        """Returns `eval_objective` of an evaluation; NaN without an objective, or if a target was not evaluated."""
        return math.nan if self.objective is None else self.objective.evaluated(*self.results(place))

    @functools.cached_property
    def _rows(self) -> pd.DataFrame:
        """Rows of all streams together, of which those of very many are summed up much faster."""
        rows: pd.DataFrame = self._ledger.read("streams", _OF_FIGURES).to_pandas()
        return rows

    @functools.cached_property
    def figures(self) -> pd.DataFrame:
        """One row per stream or other evaluation set, by name.

        `first_loss` and `last_loss` of evaluations, `samples`, `tokens`, `labels`, `coverage`, `weight` (mean of what
        was asked for, in the policy's unit), the shares `share`, `token_share` and `label_share`, `first_train_loss`
        and `last_train_loss` (means over the first and the last tenth of the steps).
        """
        rows = self._rows
        columns = {"samples": ("count", "sum"), "tokens": ("tokens", "sum"), "labels": ("labels", "sum")}
        weight = "weight" if self.unit == "samples" else "policy_weight"
        columns |= {"coverage": ("coverage", "last"), "weight": (weight, "mean")}
        figures = rows.groupby("stream", sort=False).agg(**columns)
        for share, amount in {"share": "samples", "token_share": "tokens", "label_share": "labels"}.items():
            figures[share] = figures[amount] / max(int(figures[amount].sum()), 1)
        names = list(dict.fromkeys([*figures.index, *self.evaluations]))
        figures = figures.astype(dict.fromkeys(UNITS, "Int64")).reindex(names)
        first, last = (pd.Series(self.losses(place), dtype=np.float64) for place in (0, -1))
        evaluated = pd.DataFrame({"first_loss": first, "last_loss": last}, index=figures.index)
        return evaluated.join(figures).join(_training_losses(rows))

    def as_data(self) -> dict[str, Any]:
        """Returns `steps`, `eval_loss` and others over sets (each `first` and `last`), `streams` and `metrics`."""
        over_sets = {"eval_loss": self.mean_loss, "eval_worst_loss": self.worst_loss}
        over_sets |= {} if self.objective is None else {"eval_objective": self.objective_value}
        return {
            "steps": self.last_step,
            "policy": self.policy,
            **({} if self.interval_steps == 1 else {"interval_steps": self.interval_steps}),
            **{name: {"first": value(0), "last": value(-1)} for name, value in over_sets.items()},
            "streams": self.figures.reset_index(names="stream"),
            "metrics": self.metric_ends,
        }

    @property
    def metric_ends(self) -> list[dict[str, Any]]:
        """Results of `compute_metrics`, one row per set and metric: stream, metric, first, last."""
        (_, first), (_, last) = self.results(0), self.results(-1)
        return [
            {"stream": name, "metric": metric, "first": value, "last": last[name][metric]}
            for name, own in first.items()
            for metric, value in own.items()
        ]

    @functools.cached_property
    def row_clock(self) -> pd.DataFrame:
        """The clock at the steps of streams' rows, with what the steps of a row add up to.

        `total` is their samples, and `asked` those that the batch size and the streams left to ask for.
        """
        has_rows = np.isin(self.clock["step"], np.concatenate([own["step"] for own in self.stream_columns.values()]))
        asked = self.clock[["batch_size", "total"]].min(axis=1).to_numpy()
        sums: dict[str, NDArray[Any]] = {"total": self.clock["total"].to_numpy(), "asked": asked}
        if self.interval_steps == 1:
            sums = {name: values[has_rows] for name, values in sums.items()}
        else:
            sums = {name: np.diff(np.cumsum(values)[has_rows], prepend=0) for name, values in sums.items()}
        return self.clock[has_rows].reset_index(drop=True).assign(**sums)

    @functools.cached_property
    def arrays(self) -> dict[str, NDArray[Any]]:
        """By column of `streams`, `[num_rows, num_streams]`: a row for each of `row_clock`."""
        own = by_stream(self._ledger.read("streams", _OF_ARRAYS), self.clock)
        steps = self.row_clock["step"]
        arrays: dict[str, NDArray[Any]] = {}
        for tables in (self.streams, own):
            placed = {name: rows.set_index("step") for name, rows in tables.items()}
            for column in map(str, next(iter(placed.values())).columns):
                absent = _ABSENT.get(column, np.nan)
                laid_out = {name: rows[column].reindex(steps, fill_value=absent) for name, rows in placed.items()}
                arrays[column] = pd.DataFrame(laid_out).to_numpy()
        return arrays

    @property
    def has_same_streams(self) -> bool:
        """Whether every step had all of the streams."""
        return all(len(own["step"]) == len(self.row_clock) for own in self.stream_columns.values())

    def row_of(self, step: int) -> int:
        """Finds a step.

        Args:
            step: Its number.

        Returns:
            Its row in `row_clock`, or that of its interval.

        Raises:
            ValueError: If the ledger does not hold it; the message names the steps that it holds.
        """
        steps = self.row_clock["step"].to_numpy()
        row = int(np.searchsorted(steps, step))  # of the interval that the step is in
        if row == len(steps) or not 0 <= steps[row] - step < self.interval_steps or step < 1:
            held = f"one of the steps in the ledger of {self.folder}, {self.held_steps}"
            raise InvalidValueError(option="step", expected=held, found=step)
        return row

    @property
    def held_steps(self) -> str:
        """Numbers of the steps that the ledger holds, as a text: `1 to 5, 8 to 12`."""
        steps = self.row_clock["step"].to_numpy()
        gaps = np.flatnonzero(np.diff(steps) > self.interval_steps)
        firsts = np.maximum(steps - self.interval_steps, 0) + 1
        ends = zip(firsts[[0, *(gaps + 1)]], steps[[*gaps, -1]], strict=True)
        ranges = [f"{first} to {last}" if first < last else f"{first}" for first, last in ends]
        left_out = f", ... ({len(ranges) - _MOST_RANGES} more parts)" if len(ranges) > _MOST_RANGES else ""
        return ", ".join(ranges[:_MOST_RANGES]) + left_out

    def names_after(self, step: int) -> tuple[str, ...]:
        """Names of the streams that the run had after a step, in its own order; a resumed run may have others."""
        rows = self._ledger.read("streams", ["step", "stream"]).to_pandas()
        steps = rows["step"].unique()
        at = steps[min(np.searchsorted(steps, max(step, 1)), len(steps) - 1)]
        return tuple(rows.loc[rows["step"] == at, "stream"])

    def decision_before(self, step: int) -> tuple[int | None, pd.DataFrame]:
        """Finds the decision that rules a step; see `decided_before`."""
        return decided_before(self.decisions, step)


def _most_passes(row: dict[str, Any]) -> float | None:
    size, samples = row.get("num_samples"), row.get("max_samples")
    limits = [row.get("max_epochs"), samples / size if samples and size else None]
    return min((float(limit) for limit in limits if limit is not None), default=None)


def _training_losses(rows: pd.DataFrame) -> pd.DataFrame:
    """Averages each stream's loss over the items of the first and of the last tenth of the steps."""
    rows = rows[rows["items"] > 0]
    steps = rows["step"].unique()
    tenth = max(1, round(_TENTH * len(steps)))
    losses = {}
    for name, part in {"first": steps[:tenth], "last": steps[-tenth:]}.items():
        own = rows[rows["step"].isin(part)]
        places, streams = pd.factorize(own["stream"])
        sums = np.bincount(places, own["loss"] * own["items"]) / np.bincount(places, own["items"])
        losses[f"{name}_train_loss"] = pd.Series(sums, index=streams, dtype=np.float64)
    return pd.DataFrame(losses)
