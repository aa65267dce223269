"""Reads what `mixer watch` shows of a run from its ledger."""

import math
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from mixer.ledger.append_table import places_by_stream
from mixer.ledger.evaluated_losses import recorded_weights
from mixer.ledger.folder import open_ledger, read_note
from mixer.ledger.ledger import Ledger
from mixer.policies.contract import UNITS, Unit
from mixer.utils.arrays import FloatArray

_RECENT_STEPS = 50
_STREAM_COLUMNS = (
    *("step", "stream", "weight", "policy_weight", "count", "items", "loss"),
    *("tokens", "labels", "seen", "coverage", "epoch", "active"),
)
_UNITS, _MOST = ("epochs", "steps", *UNITS), 2.0**63  # a valid budget


class GatheredStream(NamedTuple):
    """A stream of a run.

    Args:
        last: The newest row.
        losses: Loss of each row, `[num_rows]`.
        recent: `[num_rows, 4]`: loss and number of samples, of tokens and of labels of each of the last 50 steps.
        is_finite: Whether the last loss is finite; `None` without a loss.
    """

    last: dict[str, Any]
    losses: FloatArray
    recent: FloatArray
    is_finite: bool | None

    @property
    def recent_loss(self) -> float:
        """The mean loss of the last 50 steps; NaN without any, or if the last one is not finite."""
        known = self.recent[np.isfinite(self.recent[:, 0]), 0]
        return float(known.mean()) if len(known) and self.is_finite is not False else math.nan


class Gathered:
    """The newest rows of a run, and its losses.

    Args:
        ledger: The run's ledger.
    """

    def __init__(self, ledger: Ledger) -> None:
        clock = ledger.read("clock")
        self.clock: dict[str, Any] = clock.slice(max(0, clock.num_rows - 1)).to_pylist()[0] if clock.num_rows else {}
        self.losses, norms = _numbers(clock, "loss", "gradient_norm").T
        self._steps, self._progress = _numbers(clock, "step", "progress").T
        loss, norm = self.clock.get("loss"), self.clock.get("gradient_norm")
        self.is_finite = {
            "loss": None if loss is None else math.isfinite(loss),
            # The column is NaN too where the norm is not measured.
            "gradient_norm": None if norm is None or np.isnan(norms).all() else math.isfinite(norm),
        }
        evaluations = ledger.evaluations()
        self.evaluations: dict[str, float] = dict(zip(evaluations["stream"], evaluations["loss"], strict=True))
        self.evaluated_at = None if evaluations.empty else int(evaluations["step"].iloc[-1])
        seconds = _numbers(ledger.read("timings", ["load_seconds", "train_seconds"]), "load_seconds", "train_seconds")
        self._load, self._train = np.nansum(seconds[-_RECENT_STEPS:], axis=0).tolist()
        self._num_timed = len(seconds[-_RECENT_STEPS:])
        rows = ledger.read("streams", _STREAM_COLUMNS)
        numbers = _numbers(rows, "loss", "count", "tokens", "labels", "items")
        recent_rows = max(1, _RECENT_STEPS // ledger.interval_steps)
        self.streams: dict[str, GatheredStream] = {}  # those of the last step, in order
        for name, places in places_by_stream(rows).items():
            last, own = rows.slice(places[-1], 1).to_pylist()[0], numbers[places]
            with_items = own[own[:, 4] > 0, 0]
            is_finite = bool(np.isfinite(with_items[-1])) if len(with_items) else None
            self.streams[name] = GatheredStream(last, own[:, 0], own[-recent_rows:, :4], is_finite)
        last_step = max((one.last["step"] for one in self.streams.values()), default=0)
        self.streams = {name: one for name, one in self.streams.items() if one.last["step"] == last_step}

    def shares(self, unit: Unit = "samples") -> dict[str, float]:
        """Returns the share of each stream in the samples, tokens or labels of the last 50 steps."""
        column = 1 + UNITS.index(unit)
        counts = {name: float(np.nansum(one.recent[:, column])) for name, one in self.streams.items()}
        total = sum(counts.values())
        return {name: count / total if total else 0.0 for name, count in counts.items()}

    def progress_after(self, step: int) -> float:
        """Returns the share of the run that was done after a step."""
        return float(np.max(self._progress[self._steps <= step], initial=0.0))

    @property
    def loading_share(self) -> float:
        """Share of loading in the loading and training time of the last 50 steps; NaN if unknown."""
        total: float = self._load + self._train
        return self._load / total if total > 0 else math.nan

    @property
    def seconds_per_step(self) -> float:
        """Mean seconds of loading and training per step over the last 50 steps, without the optimizer step."""
        return (self._load + self._train) / self._num_timed if self._num_timed else math.nan


def _numbers(rows: pa.Table, *columns: str) -> FloatArray:
    """`[num_rows, num_columns]`."""
    return np.column_stack([np.asarray(rows.column(name).to_numpy(), dtype=np.float64) for name in columns])


class WatchedRun:
    """A run as its ledger shows it.

    Args:
        folder: The run's output folder.
    """

    note: dict[str, Any]
    gathered: Gathered
    eval_weights: dict[str, float] | None  # as set by the user

    def __init__(self, folder: Path):
        self.folder = folder

    def read(self) -> None:
        """Reads the ledger.

        Raises:
            ValueError: If there is none with a step, or it is damaged.
        """
        self.note = read_note(self.folder)
        self.eval_weights = recorded_weights(self.folder, self.note)
        self.gathered = Gathered(open_ledger(self.folder))

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
        resumed_after = self.note.get("resumed_after")
        done = self.progress - self.gathered.progress_after(resumed_after if isinstance(resumed_after, int) else 0)
        taken = self._last_written() - (self.folder / "ledger" / "ledger.json").stat().st_mtime
        return (1.0 - self.progress) * taken / done if taken > 0.0 and done > 0.0 else None

    def seconds_silent(self) -> float:
        """Returns the seconds since the ledger last grew."""
        return max(0.0, time.time() - self._last_written())

    def _last_written(self) -> float:
        return max((path.stat().st_mtime for path in (self.folder / "ledger" / "clock").glob("*")), default=time.time())
