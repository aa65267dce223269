"""The folder of a run that is watched."""

import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa

from mixer.analysis.watch.follower import Follower
from mixer.analysis.watch.gathered import Gathered
from mixer.ledger.evaluated_losses import recorded_weights
from mixer.ledger.progress.remaining_time import RemainingTime
from mixer.ledger.schemas import CLOCK, EVALUATIONS, STREAMS, TIMINGS
from mixer.ledger.table_files import files_of, read_part
from mixer.utils.bounded import load_json

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
