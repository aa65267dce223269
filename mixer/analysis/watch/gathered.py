"""The run that is watched, read from its ledger as it grows."""

import contextlib
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from mixer.analysis.watch.curve import Curve
from mixer.ledger.evaluated_losses import recorded_weights
from mixer.ledger.progress.line import RemainingTime
from mixer.ledger.schemas import CLOCK, EVALUATIONS, STREAMS, TIMINGS
from mixer.ledger.table_files import files_of, find_misfit, naming, next_batch, opened, read_columns, read_part
from mixer.utils.arrays import FloatArray
from mixer.utils.validation import load_json


class Follower:
    """Reads what came to a table since it was asked last.

    It remembers where in which file it stands; a tail that was sealed meanwhile is gone on with in its part. What is
    not whole yet is left for the next time.

    Args:
        folder: The table's folder.
        schema: Its columns and types.
        columns: Names of the columns to read.
    """

    def __init__(self, folder: Path, schema: pa.Schema, columns: Sequence[str]):
        self._folder = folder
        self._empty = pa.schema([schema.field(name) for name in columns]).empty_table()
        self._number = self._num_rows = 0  # of the file, and how many of its rows were given
        self._offset = 0
        self._tail_schema: pa.Schema | None = None

    def new_rows(self) -> pa.Table:
        """Gives the rows that came since the last call.

        Returns:
            The table, empty if there is none.

        Raises:
            ValueError: If a part is damaged; its file is named.
        """
        pieces = [self._empty]
        tails = {_number(path): path for path in files_of(self._folder, "tail-*.arrow")}
        parts = {_number(path): path for path in files_of(self._folder, "part-*.parquet")}  # after: one may be sealed
        for number in sorted(number for number in tails.keys() | parts.keys() if number >= self._number):
            if number > self._number:
                self._stand_at(number)
            if number in parts:
                pieces.append(self._of_part(parts[number]))
                self._stand_at(number + 1)
            else:
                pieces += self._of_tail(tails[number])
        return pa.concat_tables(pieces, promote_options="default").select(self._empty.column_names)

    def _stand_at(self, number: int) -> None:
        self._number, self._num_rows, self._offset, self._tail_schema = number, 0, 0, None

    def _of_part(self, path: Path) -> pa.Table:
        if not path.exists():  # a run that goes on from a checkpoint has dropped it
            return self._empty
        return read_part(path, self._empty.schema).slice(self._num_rows)

    def _of_tail(self, path: Path) -> list[pa.Table]:
        pieces = []
        torn = contextlib.suppress(pa.ArrowException, OSError, EOFError)  # its end: more will come, or a part
        with naming(path), torn, opened(path) as file:
            file.seek(self._offset)
            if self._tail_schema is None:
                self._tail_schema = read_columns(file)
                self._offset = file.tell()
            while (batch := next_batch(file, self._tail_schema)) is not None:
                self._offset = file.tell()
                self._num_rows += batch.num_rows
                names = [name for name in self._empty.column_names if name in self._tail_schema.names]
                pieces.append(pa.Table.from_batches([batch]).select(names))
                problem = find_misfit(pieces[-1], self._empty.schema)
                if problem is not None:
                    raise ValueError(problem)
        return pieces


def _number(path: Path) -> int:
    return int(path.stem.split("-")[1])


_RECENT_STEPS = 50


@dataclass
class GatheredStream:
    """A stream of a run.

    Args:
        last: Its newest row.
        losses: Its loss by step.
        recent_losses: Its loss in each of the last steps.
        recent_counts: Its samples in each of the last steps.
        is_finite: Whether its last loss is finite; `None` if it has not had any.
    """

    last: dict[str, Any] = field(default_factory=dict)
    losses: Curve = field(default_factory=Curve)
    recent_losses: FloatArray = field(default_factory=lambda: np.empty(0))
    recent_counts: FloatArray = field(default_factory=lambda: np.empty(0))
    is_finite: bool | None = None

    @property
    def recent_loss(self) -> float:
        """Its mean loss over the last steps; NaN without any, and if its last one is not finite."""
        if self.is_finite is False:
            return float("nan")
        known = self.recent_losses[np.isfinite(self.recent_losses)]
        return float(known.mean()) if len(known) else float("nan")


class Gathered:
    """A run's newest rows, and curves of all of them."""

    def __init__(self) -> None:
        self.clock: dict[str, Any] = {}
        self.losses = Curve()
        self.evaluations: dict[str, float] = {}
        self.evaluated_at: int | None = None
        self._streams: dict[str, GatheredStream] = {}
        self._measures_norm = False
        self._timings: dict[str, FloatArray] = {}

    @property
    def streams(self) -> dict[str, GatheredStream]:
        """The streams of the last step, by name and in order."""
        last_step = self.last_step  # looked up once: it goes over all streams
        return {name: one for name, one in self._streams.items() if one.last["step"] == last_step}

    @property
    def is_finite(self) -> dict[str, bool | None]:
        """Whether the loss and the gradient_norm of the last step are finite; `None` for one that is not known."""
        loss, norm = self.clock.get("loss"), self.clock.get("gradient_norm")
        return {
            "loss": None if loss is None else math.isfinite(loss),
            # NaN is also what is written where nobody measures it.
            "gradient_norm": math.isfinite(norm) if norm is not None and self._measures_norm else None,
        }

    @property
    def last_step(self) -> int:
        """Number of the last step."""
        return max((one.last["step"] for one in self._streams.values()), default=0)

    def shares(self) -> dict[str, float]:
        """Gives each stream's share in the samples of the last steps."""
        counts = {name: float(one.recent_counts.sum()) for name, one in self.streams.items()}
        total = sum(counts.values())
        return {name: count / total if total else 0.0 for name, count in counts.items()}

    def recent(self, timing: str) -> float:
        """Adds up a column of the timings over the last steps.

        Args:
            timing: Name of a column of the ledger's `steps`.

        Returns:
            The sum; NaN without any.
        """
        values = self._timings.get(timing, np.empty(0))
        return float(np.nansum(values)) if len(values) else float("nan")

    @property
    def loading_share(self) -> float:
        """Share of loading in the time of loading and training of the last steps; NaN where nobody timed them."""
        load, train = self.recent("load_seconds"), self.recent("train_seconds")
        return load / (load + train) if load + train > 0 else float("nan")

    @property
    def seconds_per_step(self) -> float:
        """Seconds of loading and training of a step of late, without the optimizer step."""
        length = len(self._timings.get("load_seconds", ()))
        return (self.recent("load_seconds") + self.recent("train_seconds")) / length if length else float("nan")

    # ---- Rows ----

    def take_streams(self, rows: pa.Table) -> None:
        """Takes rows of the table `streams` in.

        Args:
            rows: In their order.
        """
        if not rows.num_rows:
            return
        names = rows.column("stream").combine_chunks().dictionary_encode()
        ids = names.indices.to_numpy()
        order, ends = np.argsort(ids, kind="stable"), np.cumsum(np.bincount(ids))
        losses, counts, items = (_numbers(rows, column) for column in ("loss", "count", "items"))
        for name, places in zip(names.dictionary.to_pylist(), np.split(order, ends[:-1]), strict=True):
            stream = self._streams.setdefault(name, GatheredStream())
            stream.last = rows.slice(places[-1], 1).to_pylist()[0]
            stream.losses.extend(losses[places])
            stream.recent_losses = _last(stream.recent_losses, losses[places])
            stream.recent_counts = _last(stream.recent_counts, counts[places])
            with_items = losses[places][items[places] > 0]
            stream.is_finite = bool(np.isfinite(with_items[-1])) if len(with_items) else stream.is_finite

    def take_clock(self, rows: pa.Table) -> None:
        """Takes rows of the table `clock` in.

        Args:
            rows: In their order.
        """
        if rows.num_rows:
            self.clock = rows.slice(rows.num_rows - 1).to_pylist()[0]
            self.losses.extend(_numbers(rows, "loss"))
            self._measures_norm |= not np.isnan(_numbers(rows, "gradient_norm")).all()

    def take_timings(self, rows: pa.Table) -> None:
        """Takes rows of the table `steps` in.

        Args:
            rows: In their order.
        """
        for name in rows.column_names:
            self._timings[name] = _last(self._timings.get(name, np.empty(0)), _numbers(rows, name))

    def take_evaluations(self, rows: pa.Table) -> None:
        """Takes rows of the table `evaluations` in.

        Args:
            rows: In their order.
        """
        for row in rows.to_pylist():
            loss = row["loss"]  # a table that somebody made may lack it
            self.evaluations[row["stream"]], self.evaluated_at = math.nan if loss is None else loss, row["step"]


def _numbers(rows: pa.Table, column: str) -> FloatArray:
    return np.asarray(rows.column(column).to_numpy(), dtype=np.float64)


def _last(known: FloatArray, new: FloatArray) -> FloatArray:
    return np.concatenate([known, new[-_RECENT_STEPS:]])[-_RECENT_STEPS:]


_STREAM_COLUMNS = (
    "step",
    "stream",
    "weight",
    "count",
    "items",
    "loss",
    "tokens",
    "seen",
    "coverage",
    "epoch",
    "active",
)
_TIMING_COLUMNS = ("step", "load_seconds", "train_seconds")
_LEAST_OBSERVED_SECONDS = 20.0
_UNITS, _MOST = ("epochs", "steps", "samples", "tokens"), 2.0**63  # what else stands there nobody wrote


class WatchedRun:
    """A run, looked at again and again; only what is new in its ledger is read.

    Args:
        folder: The output folder of a trainer.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        self.note: dict[str, Any] = {}
        self.eval_weights: dict[str, float] | None = None  # what the user gave as such
        self.gathered = Gathered()
        self._version: tuple[int, int] | None = None
        self._sources: list[tuple[Follower, Callable[[pa.Table], None]]] = []
        self._observed, self._observed_from = RemainingTime(), math.inf
        self._began = self._began_at = 0.0  # by the clock of the file system, and of the run's progress

    def read(self) -> None:
        """Takes in what came since the last call; everything, where the run began anew or went on meanwhile.

        Raises:
            ValueError: If the ledger is damaged.
        """
        path = self.folder / "ledger" / "ledger.json"
        try:
            version = path.stat().st_ino, path.stat().st_mtime_ns
            note = load_json(path)
        except FileNotFoundError:  # a new run has just put the ledger aside
            return
        except ValueError as error:
            raise ValueError(f"{path} is damaged ({error}).") from None
        if not isinstance(note, dict):
            raise ValueError(f"{path} is damaged: it holds {type(note).__name__} in place of what is noted of a run.")
        if version != self._version:
            self._version, self.note = version, note
            self.eval_weights = recorded_weights(self.folder, note)
            self._begin(version[1])
        before = self.progress
        for follower, take in self._sources:
            take(follower.new_rows())
        if self.progress != before:
            now = time.monotonic()
            self._observed.advance(self.progress, now)
            self._observed_from = min(self._observed_from, now)

    @property
    def progress(self) -> float:
        """Share of the run that is done."""
        return float(self.gathered.clock.get("progress", 0.0))

    @property
    def state(self) -> str:
        """`"running"`, `"finished"` or `"stopped"`; of a run that was killed nobody knows, it counts as running."""
        ended = self.note.get("ended")
        if ended in ("finished", "stopped"):
            return str(ended)
        return "running"

    @property
    def reason(self) -> str | None:
        """What stopped the run, if it was stopped: a signal, or an error."""
        reason = self.note.get("reason")
        return reason if isinstance(reason, str) else None

    @property
    def budget(self) -> dict[str, float]:
        """What the run may use up, by unit; empty where that is not known."""
        run = self.note.get("run")
        budget = run.get("budget") if isinstance(run, dict) else None
        if not isinstance(budget, dict):
            return {}
        known = {unit: most for unit, most in budget.items() if unit in _UNITS and isinstance(most, int | float)}
        return {unit: most for unit, most in known.items() if 0 < most < _MOST}

    def seconds_left(self) -> float | None:
        """Estimates how long the run still takes: by what was seen of it here, before that by when it began."""
        if self.state != "running":
            return None
        if time.monotonic() - self._observed_from > _LEAST_OBSERVED_SECONDS:  # rows come in bursts
            return self._observed.seconds
        taken, done = self._last_written() - self._began, self.progress - self._began_at
        return (1.0 - self.progress) * taken / done if taken > 0.0 and done > 0.0 else None

    def seconds_silent(self) -> float:
        """Seconds since the ledger last grew."""
        written = self._last_written()
        return max(0.0, time.time() - written) if written else 0.0

    def _last_written(self) -> float:
        folder = self.folder / "ledger" / "clock"
        return max((path.stat().st_mtime for path in folder.iterdir()), default=0.0) if folder.is_dir() else 0.0

    def _begin(self, nanoseconds: int) -> None:
        # Parts that are no newer are of an earlier part of the run, after whose checkpoint this one goes on.
        parts = files_of(self.folder / "ledger" / "clock", "part-*.parquet")
        kept = [path for path in parts if path.stat().st_mtime_ns <= nanoseconds]
        self._began = nanoseconds / 1e9
        self._began_at = 0.0
        if kept:
            shares = read_part(kept[-1], pa.schema([CLOCK.field("progress")])).column("progress")
            self._began_at = shares[-1].as_py() if len(shares) else 0.0
        self.gathered, self._observed, self._observed_from = Gathered(), RemainingTime(), math.inf
        ledger, gathered = self.folder / "ledger", self.gathered
        self._sources = [
            (Follower(ledger / "streams", STREAMS, _STREAM_COLUMNS), gathered.take_streams),
            (Follower(ledger / "clock", CLOCK, CLOCK.names), gathered.take_clock),
            (Follower(ledger / "timings", TIMINGS, _TIMING_COLUMNS), gathered.take_timings),
            (Follower(ledger / "evaluations", EVALUATIONS, EVALUATIONS.names), gathered.take_evaluations),
        ]
