"""Reads a run from its ledger while the ledger grows."""

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
from mixer.ledger import table_files
from mixer.ledger.evaluated_losses import recorded_weights
from mixer.ledger.folder import interval_in
from mixer.ledger.schemas import CLOCK, SCHEMAS
from mixer.ledger.table import places_by_stream
from mixer.policies.contract import Unit
from mixer.utils.arrays import FloatArray
from mixer.utils.validation import load_json

_RECENT_STEPS = 50
_STREAM_COLUMNS = (
    *("step", "stream", "weight", "policy_weight", "count", "items", "loss"),
    *("tokens", "seen", "coverage", "epoch", "active"),
)
_TIMING_COLUMNS = ("load_seconds", "train_seconds")
_UNITS, _MOST = ("epochs", "steps", "samples", "tokens"), 2.0**63  # a valid budget


class Follower:
    """Reads the new rows of a table.

    It remembers its file and position. When a tail was sealed meanwhile, it continues in the part that replaced it.
    Incomplete rows are left for the next call.

    Args:
        folder: The table's folder.
        schema: Its columns and types.
        columns: Names of the columns to read.
    """

    def __init__(self, folder: Path, schema: pa.Schema, columns: Sequence[str]):
        self._folder = folder
        self._empty = pa.schema([schema.field(name) for name in columns]).empty_table()
        self._move_to(0)

    def new_rows(self) -> pa.Table:
        """Returns the rows since the last call.

        Raises:
            ValueError: If a part is damaged; the message names its file.
        """
        pieces = [self._empty]
        tails = {table_files.number_of(path): path for path in table_files.files_of(self._folder, "tail-*.arrow")}
        # Listed second: a tail may be sealed in between.
        parts = {table_files.number_of(path): path for path in table_files.files_of(self._folder, "part-*.parquet")}
        for number in sorted(number for number in tails.keys() | parts.keys() if number >= self._number):
            if number > self._number:
                self._move_to(number)
            if number in parts:
                pieces.append(self._read_part(parts[number]))
                self._move_to(number + 1)
            else:
                pieces += self._read_tail(tails[number])
        return pa.concat_tables(pieces, promote_options="default").select(self._empty.column_names)

    def _move_to(self, number: int) -> None:
        self._number, self._num_rows, self._offset = number, 0, 0  # of the file, and of what was read of it
        self._tail_schema: pa.Schema | None = None

    def _read_part(self, path: Path) -> pa.Table:
        if not path.exists():  # dropped when the run resumed from a checkpoint
            return self._empty
        return table_files.read_part(path, self._empty.schema).slice(self._num_rows)

    def _read_tail(self, path: Path) -> list[pa.Table]:
        pieces = []
        # At the end of the tail: more follows, there or in a part.
        torn = contextlib.suppress(pa.ArrowException, OSError, EOFError)
        with table_files.naming(path), torn, table_files.opened(path) as file:
            file.seek(self._offset)
            if self._tail_schema is None:
                self._tail_schema = table_files.read_columns(file)
                self._offset = file.tell()
            while (batch := table_files.next_batch(file, self._tail_schema)) is not None:
                self._offset = file.tell()
                self._num_rows += batch.num_rows
                names = [name for name in self._empty.column_names if name in self._tail_schema.names]
                rows = pa.Table.from_batches([batch]).select(names)
                pieces.append(table_files.checked(rows, self._empty.schema))
        return pieces


@dataclass
class GatheredStream:
    """A stream of a run.

    Args:
        last: The newest row.
        losses: Loss by step.
        recent: `[num_steps, 3]`: loss and number of samples and of tokens of each of the last 50 steps.
        is_finite: Whether the last loss is finite; `None` without a loss.
    """

    last: dict[str, Any] = field(default_factory=dict)
    losses: Curve = field(default_factory=Curve)
    recent: FloatArray = field(default_factory=lambda: np.empty((0, 3)))
    is_finite: bool | None = None

    @property
    def recent_loss(self) -> float:
        """The mean loss of the last 50 steps; NaN without any, or if the last one is not finite."""
        known = self.recent[np.isfinite(self.recent[:, 0]), 0]
        return float(known.mean()) if len(known) and self.is_finite is not False else math.nan


class Gathered:
    """The newest rows of a run, and curves over all rows.

    Args:
        interval_steps: Number of steps that a row of a stream covers.
    """

    def __init__(self, interval_steps: int = 1) -> None:
        self._recent_rows = max(1, _RECENT_STEPS // interval_steps)
        self.clock: dict[str, Any] = {}
        self.losses = Curve()
        self.evaluations: dict[str, float] = {}
        self.evaluated_at: int | None = None
        self._streams: dict[str, GatheredStream] = {}
        self._measures_norm = False
        self._timings: FloatArray = np.empty((0, 2))  # seconds of loading and training of the last 50 steps

    @property
    def streams(self) -> dict[str, GatheredStream]:
        """The streams of the last step, by name, in order."""
        last_step = self.last_step  # computed once: it loops over all streams
        return {name: one for name, one in self._streams.items() if one.last["step"] == last_step}

    @property
    def is_finite(self) -> dict[str, bool | None]:
        """Whether `loss` and `gradient_norm` of the last step are finite; `None` if unknown."""
        loss, norm = self.clock.get("loss"), self.clock.get("gradient_norm")
        return {
            "loss": None if loss is None else math.isfinite(loss),
            # The column is NaN too where the norm is not measured.
            "gradient_norm": math.isfinite(norm) if norm is not None and self._measures_norm else None,
        }

    @property
    def last_step(self) -> int:
        """Number of the last step."""
        return max((one.last["step"] for one in self._streams.values()), default=0)

    def shares(self, unit: Unit = "samples") -> dict[str, float]:
        """Returns the share of each stream in the samples, or the tokens, of the last 50 steps."""
        column = 1 if unit == "samples" else 2
        counts = {name: float(one.recent[:, column].sum()) for name, one in self.streams.items()}
        total = sum(counts.values())
        return {name: count / total if total else 0.0 for name, count in counts.items()}

    @property
    def loading_share(self) -> float:
        """Share of loading in the loading and training time of the last 50 steps; NaN if unknown."""
        load, train = np.nansum(self._timings, axis=0).tolist()
        return load / (load + train) if load + train > 0 else math.nan

    @property
    def seconds_per_step(self) -> float:
        """Mean seconds of loading and training per step over the last 50 steps, without the optimizer step."""
        return float(np.nansum(self._timings) / len(self._timings)) if len(self._timings) else math.nan

    def take_streams(self, rows: pa.Table) -> None:
        """Adds rows of the table `streams`."""
        numbers = _numbers(rows, ["loss", "count", "tokens", "items"])
        for name, places in places_by_stream(rows).items():
            stream = self._streams.setdefault(name, GatheredStream())
            stream.last = rows.slice(places[-1], 1).to_pylist()[0]
            losses, _, _, items = numbers[places].T
            stream.losses.extend(losses)
            stream.recent = _last(stream.recent, numbers[places, :3], self._recent_rows)
            with_items = losses[items > 0]
            stream.is_finite = bool(np.isfinite(with_items[-1])) if len(with_items) else stream.is_finite

    def take_clock(self, rows: pa.Table) -> None:
        """Adds rows of the table `clock`."""
        if rows.num_rows:
            self.clock = rows.slice(rows.num_rows - 1).to_pylist()[0]
            losses, norms = _numbers(rows, ["loss", "gradient_norm"]).T
            self.losses.extend(losses)
            self._measures_norm |= not np.isnan(norms).all()

    def take_timings(self, rows: pa.Table) -> None:
        """Adds rows of the table `timings`."""
        self._timings = _last(self._timings, _numbers(rows, _TIMING_COLUMNS), _RECENT_STEPS)

    def take_evaluations(self, rows: pa.Table) -> None:
        """Adds rows of the table `evaluations`."""
        for row in rows.to_pylist():
            loss = row["loss"]  # missing in a table that was not written by a run
            self.evaluations[row["stream"]], self.evaluated_at = math.nan if loss is None else loss, row["step"]


def _numbers(rows: pa.Table, columns: Sequence[str]) -> FloatArray:
    """`[num_rows, num_columns]`."""
    return np.column_stack([np.asarray(rows.column(name).to_numpy(), dtype=np.float64) for name in columns])


def _last(known: FloatArray, new: FloatArray, number: int) -> FloatArray:
    return np.concatenate([known, new[-number:]])[-number:]


class WatchedRun:
    """A run that is read repeatedly; each time only the new rows of its ledger.

    Args:
        folder: The run's output folder.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        self.note: dict[str, Any] = {}
        self.eval_weights: dict[str, float] | None = None  # as set by the user
        self.gathered = Gathered()
        self._version: tuple[int, int] | None = None
        self._sources: list[tuple[Follower, Callable[[pa.Table], None]]] = []
        self._began = self._began_at = 0.0  # time of the file system, and progress

    def read(self) -> None:
        """Reads the new rows; all rows, if the run was restarted or resumed since the last call.

        Raises:
            ValueError: If the ledger is damaged.
        """
        path = self.folder / "ledger" / "ledger.json"
        try:
            version = path.stat().st_ino, path.stat().st_mtime_ns
            note = load_json(path)
        except FileNotFoundError:  # a new run is replacing the ledger
            return
        except ValueError as error:
            raise ValueError(f"{path} is damaged ({error}).") from None
        if not isinstance(note, dict):
            raise ValueError(f"{path} is damaged: it holds {type(note).__name__} in place of a mapping.")
        if version != self._version:
            self._version, self.note = version, note
            self.eval_weights = recorded_weights(self.folder, note)
            self._begin(version[1])
        for follower, take in self._sources:
            take(follower.new_rows())

    @property
    def progress(self) -> float:
        """Share of the run that is done."""
        return float(self.gathered.clock.get("progress", 0.0))

    @property
    def policy(self) -> Any:
        """The policy as it is described (see `as_data`); `None` if unknown."""
        run = self.note.get("run")
        return run.get("mixing") if isinstance(run, dict) else None

    @property
    def state(self) -> str:
        """`"running"`, `"finished"` or `"stopped"`; a run that was killed counts as running."""
        ended = self.note.get("ended")
        return str(ended) if ended in ("finished", "stopped") else "running"

    @property
    def reason(self) -> str | None:
        """The signal or error that stopped the run; `None` if it was not stopped."""
        reason = self.note.get("reason")
        return reason if isinstance(reason, str) else None

    @property
    def budget(self) -> dict[str, float]:
        """The run's budget by unit; empty if unknown."""
        run = self.note.get("run")
        budget = run.get("budget") if isinstance(run, dict) else None
        units = budget.items() if isinstance(budget, dict) else ()
        return {
            unit: most for unit, most in units if unit in _UNITS and isinstance(most, int | float) and 0 < most < _MOST
        }

    def seconds_left(self) -> float | None:
        """Estimates the remaining time from the time since the run began, or resumed."""
        if self.state != "running":
            return None
        taken, done = self._last_written() - self._began, self.progress - self._began_at
        return (1.0 - self.progress) * taken / done if taken > 0.0 and done > 0.0 else None

    def seconds_silent(self) -> float:
        """Returns the seconds since the ledger last grew."""
        written = self._last_written()
        return max(0.0, time.time() - written) if written else 0.0

    def _last_written(self) -> float:
        folder = self.folder / "ledger" / "clock"
        return max((path.stat().st_mtime for path in folder.iterdir()), default=0.0) if folder.is_dir() else 0.0

    def _begin(self, nanoseconds: int) -> None:
        # Older parts belong to the run before the checkpoint that it resumed from.
        parts = table_files.files_of(self.folder / "ledger" / "clock", "part-*.parquet")
        kept = [path for path in parts if path.stat().st_mtime_ns <= nanoseconds]
        self._began, self._began_at = nanoseconds / 1e9, 0.0
        if kept:
            shares = table_files.read_part(kept[-1], pa.schema([CLOCK.field("progress")])).column("progress")
            self._began_at = shares[-1].as_py() if len(shares) else 0.0
        self.gathered = Gathered(interval_in(self.note, self.folder))
        columns = {"streams": _STREAM_COLUMNS, "timings": _TIMING_COLUMNS}
        self._sources = [
            (
                Follower(self.folder / "ledger" / name, SCHEMAS[name], columns.get(name, SCHEMAS[name].names)),
                getattr(self.gathered, f"take_{name}"),
            )
            for name in ("streams", "clock", "timings", "evaluations")
        ]
