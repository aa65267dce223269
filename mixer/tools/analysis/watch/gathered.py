"""Reads what `mixer watch` shows of a run from its ledger."""

import math
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from mixer.ledger.append_table import places_by_stream
from mixer.ledger.evaluated_losses import recorded_weights
from mixer.ledger.folder import open_ledger, read_note
from mixer.policies.contract import UNITS, Unit
from mixer.utils.arrays import FloatArray

_RECENT_STEPS = 50
_STREAM_COLUMNS = (
    *("step", "stream", "weight", "policy_weight", "count", "items", "loss"),
    *("tokens", "labels", "seen", "coverage", "epoch", "active"),
)
_AMOUNTS: dict[Unit, str] = {"samples": "count", "tokens": "tokens", "labels": "labels"}
_MOST = 2.0**63  # a valid budget


class WatchedStream(NamedTuple):
    """A stream of a run.

    Args:
        last: The newest row.
        losses: Loss of each row, `[num_rows]`.
        loss: The mean loss of the last 50 steps; NaN without any, or if the last one is not finite.
        is_finite: Whether the last loss is finite; `None` without a loss.
        amounts: Number of samples, tokens and labels of the last 50 steps.
    """

    last: dict[str, Any]
    losses: FloatArray
    loss: float
    is_finite: bool | None
    amounts: dict[Unit, float]


class WatchedRun:
    """A run as its ledger shows it.

    Args:
        folder: The run's output folder.
    """

    def __init__(self, folder: Path):
        self.folder = folder

    def read(self) -> None:
        """Reads the ledger.

        Raises:
            ValueError: If there is none with a step, or it is damaged.
        """
        self.note, ledger = read_note(self.folder), open_ledger(self.folder)
        self.eval_weights = recorded_weights(self.folder, self.note)
        clock, evaluations = ledger.clock(), ledger.evaluations()
        if clock.empty:  # the tables are written one after the other
            raise ValueError(f"The ledger of {self.folder} has no complete step yet: try again in a few seconds.")
        self.clock = {str(name): value for name, value in clock.tail(1).to_dict("records")[0].items()}
        self.losses, self._progress = clock["loss"].to_numpy(), clock.set_index("step")["progress"]
        # The column is NaN too where the norm is not measured.
        norm = None if clock["gradient_norm"].isna().all() else math.isfinite(self.clock["gradient_norm"])
        self.is_finite = {"loss": math.isfinite(self.clock["loss"]), "gradient_norm": norm}
        self.evaluations: dict[str, float] = dict(zip(evaluations["stream"], evaluations["loss"], strict=True))
        self.evaluated_at = None if evaluations.empty else int(evaluations["step"].iloc[-1])
        self.seconds = ledger.timings()[["load_seconds", "train_seconds"]].tail(_RECENT_STEPS).mean()
        rows, recent = ledger.read("streams", _STREAM_COLUMNS), max(1, _RECENT_STEPS // ledger.interval_steps)
        columns = {name: rows.column(name).to_numpy() for name in (*_AMOUNTS.values(), "loss", "items")}
        streams = {
            name: _stream(
                rows.slice(places[-1], 1).to_pylist()[0], {key: own[places] for key, own in columns.items()}, recent
            )
            for name, places in places_by_stream(rows).items()
        }
        end = max(one.last["step"] for one in streams.values())
        self.streams = {name: one for name, one in streams.items() if one.last["step"] == end}  # in order

    def shares(self, unit: Unit = "samples") -> dict[str, float]:
        """Returns the share of each stream in the samples, tokens or labels of the last 50 steps."""
        total = sum(one.amounts[unit] for one in self.streams.values()) or 1.0
        return {name: one.amounts[unit] / total for name, one in self.streams.items()}

    @property
    def seconds_per_step(self) -> float:
        """Mean seconds of loading and training per step over the last 50 steps, without the optimizer step."""
        return float(self.seconds.sum(skipna=False))

    @property
    def loading_share(self) -> float:
        """Share of loading in the loading and training time of the last 50 steps; NaN if unknown."""
        total = self.seconds_per_step
        return float(self.seconds["load_seconds"]) / total if total > 0 else math.nan

    @property
    def progress(self) -> float:
        """Share of the run that is done."""
        return float(self.clock["progress"])

    @property
    def policy(self) -> Any:
        """The policy as it is described (see `as_data`); `None` if unknown."""
        return self._described.get("mixing")

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
        budget = self._described.get("budget")
        given = {unit: budget.get(unit) for unit in ("epochs", "steps", *UNITS)} if isinstance(budget, dict) else {}
        return {unit: most for unit, most in given.items() if isinstance(most, int | float) and 0 < most < _MOST}

    @property
    def _described(self) -> dict[str, Any]:
        run = self.note.get("run")
        return run if isinstance(run, dict) else {}

    def seconds_left(self) -> float | None:
        """Estimates the remaining time from the time since the run began, or resumed."""
        if self.state != "running":
            return None
        resumed = self.note.get("resumed_after")
        before = self._progress[self._progress.index <= (resumed if isinstance(resumed, int) else 0)].max()
        done = self.progress - (0.0 if math.isnan(before) else float(before))
        taken = self._last_written() - (self.folder / "ledger" / "ledger.json").stat().st_mtime
        return (1.0 - self.progress) * taken / done if taken > 0.0 and done > 0.0 else None

    def seconds_silent(self) -> float:
        """Returns the seconds since the ledger last grew."""
        return max(0.0, time.time() - self._last_written())

    def _last_written(self) -> float:
        return max((path.stat().st_mtime for path in (self.folder / "ledger" / "clock").glob("*")), default=time.time())


def _stream(last: dict[str, Any], columns: dict[str, Any], recent: int) -> WatchedStream:
    losses = columns["loss"]
    with_items, known = losses[columns["items"] > 0], losses[-recent:][np.isfinite(losses[-recent:])]
    is_finite = bool(np.isfinite(with_items[-1])) if len(with_items) else None
    mean = float(known.mean()) if len(known) and is_finite is not False else math.nan
    amounts = {unit: float(columns[name][-recent:].sum()) for unit, name in _AMOUNTS.items()}
    return WatchedStream(last, losses, mean, is_finite, amounts)
