"""The ledger: the tables that a run records, step by step."""

import contextlib
import itertools
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import NDArray

from mixer.gradients.records import cosines_of, rows_of
from mixer.ledger.append_table import Table
from mixer.ledger.intervals import IntervalRows, default_interval
from mixer.ledger.schemas import METRICS, SCHEMAS
from mixer.measurements.gradients import GradientStatistics
from mixer.utils.errors import wrong_value
from mixer.utils.files import WriteError, at_once, make_folder, read_json, write_json, writing
from mixer.utils.ranges import check_count

FORMAT_VERSION = 2  # 1 where every row of a stream is one step

# Column by which a table may have several rows at a step: the last one counts.
_COUNTED = {"memories": "source", "memory_classes": "label"}


class Ledger:
    """The tables of a run.

    All but `timings` are the same in every repetition of a run: `streams` (a row per step and stream), `clock`,
    `evaluations`, `metrics`, `gradients`, `decisions`, `memories`, `memory_classes`, `terms`,
    `orders`, `left_out` and `replays` (for the last three see `mixer.ledger.orders`).

    Args:
        folder: Where the ledger is kept: the output folder of a run, or the folder `ledger` in it.
        is_writer: Whether this process of a run writes it, in this very folder: the main rank only. `None` reads one
            that is there.
        interval_steps: Number of steps that a row of `streams` covers (see `IntervalRows`), of which
            `decisions` keeps the last; `None` chooses 1 up to 256 streams, and with more as many as keep the bytes a
            step bounded.

    Attributes:
        interval_steps: The number chosen, when a run has begun.

    Raises:
        ValueError: If `interval_steps` is no whole number from 1 on, or there is no ledger to read.
    """

    def __init__(self, folder: str | Path, is_writer: bool | None = None, interval_steps: int | None = None):
        if interval_steps is not None:
            check_count("ledger_interval_steps", interval_steps, 1, "None chooses it")
        self.folder = _found(Path(folder)) if is_writer is None else Path(folder)
        self.is_writer = bool(is_writer)
        self._requested_interval = interval_steps
        self._set_interval(interval_steps or 1)
        rows_per_part = {"decisions": 50_000}  # lists: wide rows
        self._tables = {
            name: Table(self.folder / name, schema, rows_per_part.get(name, 200_000))
            for name, schema in SCHEMAS.items()
        }
        self._evaluated = (-1, 0, 0)  # step of the last evaluation, and its rows of losses and of metrics
        self._note: dict[str, Any] = {}
        self.error: WriteError | None = None  # why a row could not be written: no more are

    def begin(
        self,
        resume_step: int | None,
        description: dict[str, Any],
        num_evaluations: int | None = None,
        num_metrics: int | None = None,
    ) -> None:
        """Begins a run, or resumes one after a step; a new run renames the folder of an earlier one.

        Args:
            resume_step: The step to resume after, or `None` for a new run.
            description: Content of `ledger.json` beside the format.
            num_evaluations: Number of rows on evaluations at just that step that stay, those before the checkpoint was
                written; `None` for all.
            num_metrics: The same for rows on metrics.
        """
        evaluated = (num_evaluations or 0, num_metrics or 0)
        self._evaluated = (-1, 0, 0) if resume_step is None else (resume_step, *evaluated)
        if not self.is_writer:
            return
        self.error = None
        for table in self._tables.values():
            table.recover()
        if resume_step is None:
            self._archive()
        with writing(self.folder):
            make_folder(self.folder)
        if resume_step is not None:
            left = {"evaluations": num_evaluations, "metrics": num_metrics}
            for name, table in self._tables.items():
                table.truncate(resume_step, left.get(name))
        self._set_interval(self._requested_interval or default_interval(len(description.get("streams", ()))))
        longest = self.interval_steps if resume_step is None else max(self.interval_steps, self._longest_interval())
        form = {"format": 1} if longest == 1 else {"format": FORMAT_VERSION, "interval_steps": longest}
        resumed = {} if resume_step is None else {"resumed_after": resume_step}  # for the time left in `mixer watch`
        self._note = {**form, **resumed, **description}
        write_json(self.folder / "ledger.json", self._note)

    def copy_from(self, folder: Path) -> None:
        """Copies the ledger of another run, of which this one is a fork, into the place of one that is there."""
        if self.is_writer:
            self._archive()
            with writing(self.folder):
                shutil.copytree(folder, self.folder)

    def num_rows(self) -> dict[str, int]:
        """Counts the rows by table, for a checkpoint to note; empty if this process does not write."""
        return {name: table.num_rows() for name, table in self._own()}

    def record_streams(self, step: int, names: tuple[str, ...], columns: Mapping[str, NDArray[Any]]) -> None:
        """Adds a step's rows, one per stream.

        Args:
            step: Number of the step, from 1, as the Trainer logs it.
            names: Names of the streams.
            columns: `[num_streams]` each: the other columns; `labels` may lack.
        """
        if self.is_writer:
            labels = {"labels": np.zeros(len(names), dtype=np.int64)}
            self._rows.add(step, names, {**labels, **columns})

    def record_clock(self, **columns: float) -> None:
        """Adds the position of the run after a step.

        Args:
            **columns: One number a column of the table `clock`; `labels` may lack.
        """
        self.record("clock", {name: [value] for name, value in {"labels": 0, **columns}.items()})

    def record_timings(self, **columns: float) -> None:
        """Adds a step's timings.

        Args:
            **columns: One number a column of the table `steps`.
        """
        self.record("timings", {name: [value] for name, value in columns.items()})

    def record_evaluation(
        self, step: int, losses: Mapping[str, float], metrics: Mapping[str, Mapping[str, float]] = MappingProxyType({})
    ) -> None:
        """Adds an evaluation.

        Args:
            step: Number of steps before it.
            losses: Loss by name of the evaluation set.
            metrics: Other metrics by name, of those sets that have any.
        """
        rows = [(name, metric, value) for name, own in metrics.items() for metric, value in own.items()]
        num_losses, num_metrics = self.num_evaluations(step)
        self._evaluated = (step, num_losses + len(losses), num_metrics + len(rows))
        evaluated: dict[str, list[Any]] = {"stream": list(losses), "loss": list(losses.values())}
        measured = {column: [row[place] for row in rows] for place, column in enumerate(METRICS.names[1:])}
        for table, columns in (("evaluations", evaluated), ("metrics", measured)):
            self.record(table, {"step": [step] * len(columns["stream"]), **columns})

    def record_gradients(self, step: int, names: tuple[str, ...], statistics: GradientStatistics) -> None:
        """Adds a measurement of the streams' gradients, one row per stream.

        Args:
            step: Number of the step, from 1, as the Trainer logs it.
            names: Names of the streams.
            statistics: The measurement.
        """
        self.record("gradients", rows_of(step, names, statistics))

    def record_memory(
        self, step: int, name: str, counts: Mapping[str, int], classes: Mapping[int, int] = MappingProxyType({})
    ) -> None:
        """Adds the content of a replay buffer; the last one of a step counts.

        Args:
            step: Number of steps done.
            name: The name of its stream.
            counts: Number of entries by source.
            classes: Number of entries by class; empty if classes are not known.
        """
        for table, column, entries in (("memories", "source", counts), ("memory_classes", "label", classes)):
            of_all: dict[str, Any] = {"step": [step] * len(entries), "stream": [name] * len(entries)}
            self.record(table, {**of_all, column: list(entries), "entries": list(entries.values())})

    def record(self, table: str, columns: Mapping[str, Any]) -> None:
        """Adds rows to a table; see `decisions.rows_of` and `mixer.ledger.orders`.

        Args:
            table: Name of the table.
            columns: One sequence a column, of equal lengths.
        """
        if self.is_writer and len(columns["step"]):
            self._trying(lambda: self._tables[table].append(columns))

    def drop_decisions(self, step: int) -> None:
        """Drops the decisions made after a step and later, in whose place others come."""
        if self.is_writer:
            self._tables["decisions"].truncate(step - 1)

    def num_evaluations(self, step: int) -> tuple[int, int]:
        """Counts rows on evaluations at the present step of the run.

        Args:
            step: The step.

        Returns:
            How many there are of losses and of metrics; none if it is not the last step at which there were any.
        """
        return self._evaluated[1:] if self._evaluated[0] == step else (0, 0)

    def sync(self) -> None:
        """Writes everything to disk, also of an interval in progress, so that it survives a crash of the machine."""
        self._rows.end()
        at_once(Table.sync, (table for _, table in self._own()))

    def flush(self) -> None:
        """Writes everything out, also of an interval in progress, for others to see; `error` says why it could not."""
        self._rows.end()
        for _, table in self._own():
            self._trying(table.flush)

    def finish(self) -> None:
        """Seals the tables, at the end of a run or before their files are copied: their rows change no more."""
        self._rows.end()
        at_once(Table.seal, (table for _, table in self._own()))

    def note(self, name: str, content: Any) -> None:
        """Adds plain data to the description of the run that was begun, for its card."""
        if self.is_writer and self._note:
            self._note = {**self._note, "run": {**self._note.get("run", {}), name: content}}
            write_json(self.folder / "ledger.json", self._note)

    def end(self, state: Literal["finished", "stopped"], reason: str | None = None) -> None:
        """Notes the end of a run for `mixer watch`, if one was begun.

        Args:
            state: Whether it finished, or an error or a signal stopped it.
            reason: The error or the signal.
        """
        if self.is_writer and self._note:
            reasons = {} if reason is None else {"reason": reason}
            write_json(self.folder / "ledger.json", {**self._note, "ended": state, **reasons})

    def to_pandas(self) -> pd.DataFrame:
        """Reads the main table.

        Returns:
            One row per step and stream: step, stream, weight (the share asked for), count, items (terms of the
            loss), loss (mean per item, NaN where there is none), tokens, seen, unique, coverage, epoch (seen / n;
            both NaN where n is not known), staleness, undelivered (rows of an iterable stream so far that ranks
            discarded at ends of passes), policy_weight (what the policy, or the user, had decided), loss_weight (the
            factor on its loss), owed (samples of its share that it has not had yet, after the step), active (whether
            it can give a sample in the next step), skipped (its samples so far that could not be loaded and were
            left out; count and seen have them). With more than 256 streams a row covers the steps since the one
            before, at most `interval_steps`, and `step` is the last of them: count, items and tokens are sums, loss a
            mean over items, weights means over steps.
        """
        return self._frame("streams")

    def evaluations(self) -> pd.DataFrame:
        """Reads the evaluations.

        Returns:
            One row per evaluation and set: step, stream, loss.
        """
        return self._frame("evaluations")

    def metrics(self) -> pd.DataFrame:
        """Reads the results of `compute_metrics`.

        Returns:
            One row per evaluation, set and metric: step, stream, metric (without the prefix), value.
        """
        return self._frame("metrics")

    def clock(self) -> pd.DataFrame:
        """Reads the position of the run after each step.

        Returns:
            One row per step: step, samples and tokens (so far), epoch, progress (share of the budget), batch_size
            (asked for), total (its samples), learning_rate, learning_rate_factor (what the batch size multiplied it
            by), loss (mean over all items, by which gradients were taken), gradient_norm (before clipping; NaN
            without), and the numbers of `mixer.measurements`, NaN where no policy needed them.
        """
        return self._frame("clock")

    def timings(self) -> pd.DataFrame:
        """Reads the timings.

        Returns:
            One row per step: step, total, micro_batches, and of the main rank: hits and misses (samples that
            workers had, or had not, been asked for ahead; both 0 without workers), load_seconds, train_seconds,
            probe_seconds (for measuring gradients; 0 where they were not).
        """
        return self._frame("timings")

    def gradients(self) -> pd.DataFrame:
        """Reads the measurements of the streams' gradients.

        Returns:
            One row per measurement and stream, in the order of the streams: step, stream, count (samples in the
            batch), share (in its loss), squared_norm (without bias; NaN where it is not known), variance (of a
            sample's gradient), gram and gram_error (`[num_streams]`: the stream's row); see `GradientStatistics`.
        """
        return self._frame("gradients")

    def cosines(self) -> pd.DataFrame:
        """Reads the cosines between the streams' gradients.

        Returns:
            One row per measurement and pair of streams: step, stream, other (a later one), cosine (NaN where one of
            them had no sample); see `GradientStatistics.cosines`.
        """
        return cosines_of(self.gradients())

    def rewards(self) -> pd.DataFrame:
        """Reads the rewards of rounds of generation.

        Returns:
            One row per round and stream: step, stream, groups (prompts of the round), reward (mean over them), spread
            (mean of the standard deviation within a group), silent (share of groups whose rewards are all equal),
            mean_length (tokens of a completion), kl (divergence from the reference model per token); NaN where there
            is none.
        """
        return self._frame("rewards")

    def decisions(self) -> pd.DataFrame:
        """Reads the decisions of the policy, each recorded when it changed.

        Returns:
            One row per decision, level and term: step (steps done when it was made; it rules from the next one on),
            control (`"weights"`), level (0 for the innermost policy, then its wrappers), rule (name of the policy),
            term (`"decided ..."` for the decision itself), values (one number, or one per stream in the order of
            `streams` at that step; NaN for a stream that the level does not see). None of a policy that never changes
            its first decision. Version 0.1.0 also recorded those on the `"batch_size"`.
        """
        return self._frame("decisions")

    def memories(self) -> pd.DataFrame:
        """Reads the contents of replay buffers, at each log entry and at the end.

        Returns:
            One row per log entry, buffer and source: step, stream (the buffer), source (the stream or data set that
            entries came from), entries (how many).
        """
        return self._frame("memories")

    def memory_classes(self) -> pd.DataFrame:
        """Reads the classes of the entries of replay buffers, at the steps of `memories`.

        Returns:
            One row per log entry, buffer and class: step, stream (the buffer), label (-1 for entries whose class nobody
            knows), entries (how many). None of a buffer whose classes are not known.
        """
        return self._frame("memory_classes")

    def terms(self) -> pd.DataFrame:
        """Reads what methods added to the loss.

        Returns:
            One row per log entry and method: step, term (the method's name), value (mean of the steps since the entry
            before).
        """
        return self._frame("terms")

    def tables(self) -> list[str]:
        """Lists the names of its tables."""
        return list(self._tables)

    def read(self, table: str, columns: Sequence[str] | None = None) -> pa.Table:
        """Reads a table, or some of its columns.

        Args:
            table: Its name: `streams`, or that of the method that reads it.
            columns: Names of the columns; `None` for all.

        Returns:
            The table.
        """
        if table not in _COUNTED:
            return self._tables[table].read(columns)
        rows = self._tables[table].read()
        noted = rows.select(["step", "stream", _COUNTED[table]]).to_pandas()
        return rows.filter(pa.array(~noted.duplicated(keep="last"))).select(list(columns or rows.column_names))

    def has_steps(self) -> bool:
        """Whether a step was recorded, without reading the tables."""
        return not self._tables["streams"].is_empty()

    def _frame(self, table: str) -> pd.DataFrame:
        frame: pd.DataFrame = self.read(table).to_pandas()
        return frame

    def _own(self) -> Iterable[tuple[str, Table]]:
        """Returns the tables that this process writes."""
        return self._tables.items() if self.is_writer else ()

    def _set_interval(self, interval_steps: int) -> None:
        self.interval_steps = interval_steps
        self._rows = IntervalRows(interval_steps, partial(self.record, "streams"))

    def _longest_interval(self) -> int:
        """Reads the interval of the rows so far."""
        with contextlib.suppress(OSError, ValueError, KeyError):
            return int(read_json(self.folder / "ledger.json")["interval_steps"])
        return 1

    def _trying(self, write: Callable[[], None]) -> None:
        """Keeps an error for `error`: raised on the rank that writes, it would leave the others waiting."""
        try:
            write()
        except WriteError as error:
            self.error = self.error or error

    def _archive(self) -> None:
        """Renames the folder of an earlier run."""
        for table in self._tables.values():
            table.close()
        if self.folder.exists():
            names = (self.folder.with_name(f"{self.folder.name}-{number}") for number in itertools.count(1))
            self.folder.rename(next(path for path in names if not path.exists()))
        for table in self._tables.values():
            table.reset()


def runs_within(folder: Path) -> list[Path]:
    """Lists the output folders of runs in a folder."""
    return sorted(note.parents[1] for note in folder.glob("*/ledger/ledger.json"))


def _found(folder: Path) -> Path:
    """Returns the folder of a ledger: the folder itself, or the one in a run's output folder."""
    for path in (folder / "ledger", folder):
        if (path / "ledger.json").is_file() or (path / "streams").is_dir():
            return path
    runs = runs_within(folder)
    there = f"runs are in it: {', '.join(map(str, runs))}" if runs else "pass the output folder of a run that has begun"
    raise wrong_value("folder", f"Ledger: {folder} {'is no ledger' if folder.is_dir() else 'does not exist'}; {there}.")
