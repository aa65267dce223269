"""Reads the ledger of a run for a report."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from mixer.ledger.decisions import decided_before, levels_in
from mixer.ledger.evaluated_losses import recorded_objective, recorded_weights
from mixer.ledger.folder import open_ledger, read_description, read_note
from mixer.ledger.ledger import Ledger
from mixer.policies.contract import Unit
from mixer.policies.objective import Objective
from mixer.tools.report.clocked import by_stream, on_clock
from mixer.tools.report.gradient_tables import Cosines, read_gradients
from mixer.tools.report.last_change import last_change
from mixer.utils.errors import InvalidValueError
from mixer.utils.text import mixing_unit, shortened

# Other columns are not read, to save time and memory.
_CLOCK = [
    "step", "samples", "tokens", "epoch", "progress", "batch_size", "total", "learning_rate", "learning_rate_factor",
    "loss", "gradient_norm", "labels",
]  # fmt: skip
_STREAMS = [
    "step", "stream", "weight", "policy_weight", "count", "items", "loss", "tokens", "seen", "coverage", "epoch",
    "active", "skipped", "labels",
]  # fmt: skip
_PASSES = {"epoch": "passes"}  # the stream's own, beside those of the clock
_TIMINGS = ["step", "hits", "misses", "load_seconds", "train_seconds", "probe_seconds"]

# Name of the minor of very many streams, drawn as one; see `mixer.tools.report.grouping`.
OTHERS = "other streams"
_GUARD = "OverfitGuard"


@dataclass(frozen=True)
class Run:
    """A run; all tables have the data clock's `epoch` and `samples` in every row.

    Args:
        name: Unique name on the page.
        description: The run's description of itself (see `describe_run`); empty if there is none.
        ended: How it ended, in words.
        clock: The ledger's table `clock`, one row per step.
        timings: One row per step: step, hits, misses, load_seconds, train_seconds (without probe_seconds) and
            probe_seconds.
        streams: By stream, one row per step: step, weight and policy_weight (in the policy's unit), count, items,
            loss, tokens, labels, seen, coverage, `passes` (the stream's own epochs), active and skipped.
        evaluations: By evaluation set, one row per evaluation: step, loss.
        metrics: By evaluation set, one row per evaluation and metric: step, metric, value.
        eval_weights: Weights of the sets in their mean loss, if any.
        gradients: By stream, one row per measurement of its gradient: step, squared_norm, variance.
        noise: One row per measurement of the gradient of the mixture: step, signal, noise; see
            `GradientStatistics.noise`.
        cosines: Cosines between the streams' gradients; `None` without any.
        memories: By replay stream, entries of the buffer: step, source, entries.
        objective: The declared objective, or `None`.
        held_back: By stream that `OverfitGuard` took share from, the least factor on its share and the step of it.
        decided: What the last decision changed most, in a sentence; empty without one.
        interval_steps: Number of steps that a row of a stream covers, 1 but for very many streams.
        folder: The output folder.
    """

    name: str
    description: dict[str, Any]
    ended: str
    clock: pd.DataFrame
    timings: pd.DataFrame
    streams: dict[str, pd.DataFrame]
    evaluations: dict[str, pd.DataFrame]
    metrics: dict[str, pd.DataFrame]
    eval_weights: dict[str, float] | None
    gradients: dict[str, pd.DataFrame]
    noise: pd.DataFrame
    cosines: Cosines | None
    memories: dict[str, pd.DataFrame]
    objective: Objective | None = None
    held_back: dict[str, tuple[float, int]] = field(default_factory=dict)
    decided: str = ""
    interval_steps: int = 1
    folder: Path = Path()

    @functools.cached_property
    def row_clock(self) -> pd.DataFrame:
        """The clock at the steps of streams' rows: step, epoch, samples, and `asked`, the samples to give in a row."""
        steps = self.clock["step"].to_numpy()
        has_rows = np.zeros(len(steps), dtype=bool)
        for rows in self.streams.values():
            has_rows[np.searchsorted(steps, rows["step"].to_numpy())] = True
        asked = self.clock[["batch_size", "total"]].min(axis=1).to_numpy()
        asked = asked[has_rows] if self.interval_steps == 1 else np.diff(np.cumsum(asked)[has_rows], prepend=0)
        return self.clock.loc[has_rows, ["step", "epoch", "samples"]].assign(asked=asked)

    @property
    def unit(self) -> Unit:
        """What the policy's weights are shares of."""
        return mixing_unit(self.description)

    @property
    def caps(self) -> dict[str, float]:
        """Caps on passes by stream, without streams that have none."""
        caps = {row["name"]: _most_passes(row) for row in self.description.get("streams", [])}
        return {name: cap for name, cap in caps.items() if cap is not None}

    def is_wanted(self, name: str) -> bool:
        """Whether the run is for this stream or evaluation set: for all of them without a declared objective."""
        return self.objective is None or name in self.objective.names

    @property
    def buffers(self) -> set[str]:
        """Names of the streams that are replay buffers, which exist to be repeated."""
        described = {row["name"] for row in self.description.get("streams", []) if row.get("kind") == "memory"}
        return described | set(self.memories)


def _most_passes(row: dict[str, Any]) -> float | None:
    size, samples = row.get("num_samples"), row.get("max_samples")
    limits = [row.get("max_epochs"), samples / size if samples and size else None]
    return min((float(limit) for limit in limits if limit is not None), default=None)


def read_runs(folders: Sequence[Path]) -> list[Run]:
    """Reads finished or running runs, named by `run_names`.

    Args:
        folders: Output folders of trainers.

    Raises:
        ValueError: If a folder appears twice, holds no run, or its ledger has no step yet.
    """
    return [read_run(folder, name) for folder, name in zip(folders, run_names(folders), strict=True)]


def run_names(folders: Sequence[Path]) -> list[str]:
    """Names runs after their folders, or by the paths where two folders have the same name.

    Raises:
        ValueError: If a folder appears twice.
    """
    resolved = [folder.resolve() for folder in folders]
    for number, folder in enumerate(resolved):
        if folder in resolved[:number]:
            raise InvalidValueError.about("runs", f"{folders[number]} is given twice: give each run once.")
    names = [folder.name for folder in resolved]
    return [name if names.count(name) == 1 else str(folder) for folder, name in zip(folders, names, strict=True)]


def stream_names(runs: Sequence[Run]) -> list[str]:
    """Lists the streams of all runs in order of first appearance, `OTHERS` last: each has one place and colour."""
    names = dict.fromkeys(name for run in runs for name in run.streams)
    return sorted(names, key=OTHERS.__eq__)


def declared(runs: Sequence[Run]) -> Objective | None:
    """Returns the objective of the first run that declares one."""
    return next((run.objective for run in runs if run.objective is not None), None)


def last_epoch(runs: Sequence[Run]) -> float:
    """Returns the end of the longest run on the data clock."""
    return max(float(run.clock["epoch"].max()) for run in runs)


def read_run(folder: Path, name: str) -> Run:
    """Reads a finished or running run.

    Args:
        folder: The output folder of a trainer.
        name: Name on the page.

    Raises:
        ValueError: If the folder holds no run, or its ledger has no step yet.
    """
    ledger = open_ledger(folder)
    # The clock first: of rows that a running run adds meanwhile those without a place on it are left out. And before
    # the streams what was measured of their gradients, which takes most memory while it is read.
    clock: pd.DataFrame = ledger.read("clock", _CLOCK).to_pandas()
    gradients, noise, cosines = read_gradients(ledger, clock)
    rows = ledger.read("streams", _STREAMS)
    streams = by_stream(rows.rename_columns([_PASSES.get(name, name) for name in _STREAMS]), clock)
    if not streams:
        text = f"The ledger of {folder} has no steps yet: if the run is in progress, try again later."
        raise InvalidValueError.about("run", text)
    note, description, decisions = read_note(folder), read_description(folder), ledger.decisions()
    goal = recorded_objective(folder, note)
    start = pd.DataFrame({"step": [0], "epoch": [0.0], "samples": [0]})  # an evaluation may come before any step
    from_start = pd.concat([start, clock[["step", "epoch", "samples"]]])
    return Run(
        name,
        description,
        _ended_in_words(note),
        clock,
        on_clock(_read_timings(ledger), clock),
        streams,
        by_stream(ledger.read("evaluations"), from_start),
        by_stream(ledger.read("metrics"), from_start),
        recorded_weights(folder, note),
        # A running run may have measured a stream of which it has written nothing else yet.
        _of_those(gradients, streams),
        noise,
        cosines,
        by_stream(ledger.read("memories"), clock),
        goal,
        _held_back(decisions, description),
        _decided(decisions, streams, mixing_unit(description), "" if goal is None else goal.in_words),
        ledger.interval_steps,
        folder,
    )


def _decided(decisions: pd.DataFrame, streams: dict[str, pd.DataFrame], unit: Unit, objective: str) -> str:
    """Says what the decision that ruled the last step changed most, and why."""
    at, rows = decided_before(decisions, max(int(own["step"].iloc[-1]) for own in streams.values()))
    levels = [] if at is None else levels_in(rows, list(streams))
    if at is None or not levels:
        return ""
    weights = {name: own.set_index("step")["policy_weight"] for name, own in streams.items()}
    before = {name: own[own.index <= at].tail(1).sum(min_count=1) for name, own in weights.items()}
    last = {name: own.iloc[-1] for name, own in weights.items()}
    frame = pd.DataFrame({"before": before, "policy_weight": last})
    return f"after step {at:,}: {last_change(frame, levels, unit, objective)}"


def _held_back(decisions: pd.DataFrame, description: dict[str, Any]) -> dict[str, tuple[float, int]]:
    """Least factor of `OverfitGuard` on each stream's share, and the step after which it came."""
    names = [row["name"] for row in description.get("streams", [])]
    if _GUARD not in str(description.get("mixing")):
        return {}
    rows = decisions[(decisions["rule"] == _GUARD) & (decisions["term"] == "factor")]
    table: dict[int, Any] = dict(zip(rows["step"].tolist(), rows["values"], strict=True))
    found = {}
    for place, name in enumerate(names):
        factors = {step: float(values[place]) for step, values in table.items() if len(values) == len(names)}
        if factors and min(factors.values()) < 1.0:
            step = min(factors, key=factors.__getitem__)
            found[name] = factors[step], step
    return found


def _ended_in_words(note: dict[str, Any]) -> str:
    if note.get("ended") == "finished":
        return "finished"
    if note.get("ended") != "stopped":
        return "not recorded: still running, or killed"
    return f"stopped: {shortened(str(note.get('reason', 'no recorded reason')))}"


def _read_timings(ledger: Ledger) -> pd.DataFrame:
    rows: pd.DataFrame = ledger.read("timings", _TIMINGS).to_pandas()
    return rows.assign(train_seconds=rows["train_seconds"] - rows["probe_seconds"])


def _of_those(parts: dict[str, pd.DataFrame], streams: dict[str, pd.DataFrame]) -> dict[str, pd.DataFrame]:
    return {name: part for name, part in parts.items() if name in streams}
