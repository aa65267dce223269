"""What a report reads of a run: its ledger, laid over the data clock."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from mixer.analysis.report.clocked import by_stream, on_clock
from mixer.analysis.report.gradient_tables import Cosines, read_gradients
from mixer.ledger.evaluated_losses import recorded_weights
from mixer.ledger.folder import open_ledger, read_description, read_note
from mixer.ledger.ledger import Ledger
from mixer.utils.text import shortened

# What is not read takes neither time nor memory.
_CLOCK = [
    "step", "samples", "tokens", "epoch", "progress", "batch_size", "total", "learning_rate", "learning_rate_factor",
    "loss", "gradient_norm",
]  # fmt: skip
_STREAMS = ["step", "stream", "weight", "count", "items", "loss", "seen", "coverage", "epoch", "active", "skipped"]
_PASSES = {"epoch": "passes"}  # the stream's own, beside those of the clock
_TIMINGS = ["step", "hits", "misses", "load_seconds", "train_seconds", "probe_seconds"]

# Of very many streams, those that are drawn as one; see `mixer.analysis.report.grouping`.
OTHERS = "other streams"


@dataclass(frozen=True)
class Run:
    """A run, each of its tables with the data clock's `epoch` and `samples` in every row.

    Args:
        name: What the page calls it, other than every other run's.
        description: What the run said of itself as it began (see `describe_run`); empty if there is none.
        ended: How it ended, in words.
        clock: The ledger's table of that name, one row a step.
        timings: The ledger's table of that name, one row a step: step, hits, misses, load_seconds,
            train_seconds (here without the next) and probe_seconds.
        streams: By name of the stream, one row a step: step, weight, count, items, loss, seen, coverage, `passes`
            (the stream's own epochs), there and skipped.
        evaluations: By name of the evaluation set, one row an evaluation: step, loss.
        metrics: By name of the evaluation set, one row an evaluation and metric: step, metric, value.
        eval_weights: Weights of the sets in their mean loss, if the user gave any.
        comparisons: By name of the stream, one row a step: step, excess_loss, loss_after; empty where losses were
            not compared.
        gradients: By name of the stream, one row a measurement of its gradient: step, squared_norm, variance; empty
            where none was measured.
        noise: Of the whole gradient, one row a measurement: step, signal, noise; see `GradientStatistics.noise`.
        cosines: Between the streams' gradients; `None` where there is no pair of them.
        memories: By name of the stream, what a replay buffer held: step, source, entries; empty without buffers.
        memory_classes: By name of the stream, of which classes the entries were: step, label, entries; empty where that
            is not known.
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
    comparisons: dict[str, pd.DataFrame]
    gradients: dict[str, pd.DataFrame]
    noise: pd.DataFrame
    cosines: Cosines | None
    memories: dict[str, pd.DataFrame]
    memory_classes: dict[str, pd.DataFrame]

    @property
    def caps(self) -> dict[str, float]:
        """By name of the stream, the passes after which it leaves the mixture; those without are not in it."""
        caps = {row["name"]: row.get("max_epochs") for row in self.description.get("streams", [])}
        return {name: float(cap) for name, cap in caps.items() if cap is not None}

    @property
    def buffers(self) -> set[str]:
        """Names of the streams that are replay buffers: to repeat what they hold is what they are for."""
        described = {row["name"] for row in self.description.get("streams", []) if row.get("kind") == "memory"}
        return described | set(self.memories)


def read_runs(folders: Sequence[Path]) -> list[Run]:
    """Reads runs, finished or going.

    Args:
        folders: Output folders of trainers.

    Returns:
        The runs, named by `run_names`.

    Raises:
        ValueError: If a folder is given twice, is none, holds no run, or its ledger has no step yet.
    """
    return [read_run(folder, name) for folder, name in zip(folders, run_names(folders), strict=True)]


def run_names(folders: Sequence[Path]) -> list[str]:
    """Names runs after their folders, or by the paths where two folders have the same name.

    Args:
        folders: Output folders.

    Returns:
        The names, each another.

    Raises:
        ValueError: If a folder is given twice.
    """
    resolved = [folder.resolve() for folder in folders]
    for number, folder in enumerate(resolved):
        if folder in resolved[:number]:
            raise ValueError(f"{folders[number]} is given twice: give each run once.")
    names = [folder.name for folder in resolved]
    return [name if names.count(name) == 1 else str(folder) for folder, name in zip(folders, names, strict=True)]


def stream_names(runs: Sequence[Run]) -> list[str]:
    """Lists the streams of all runs, so that each has the same place and colour in every one.

    Args:
        runs: The runs.

    Returns:
        Names, in the order of the first run that has them, those that are drawn as one last.
    """
    names = dict.fromkeys(name for run in runs for name in run.streams)
    return sorted(names, key=OTHERS.__eq__)


def read_run(folder: Path, name: str) -> Run:
    """Reads a run, finished or going.

    Args:
        folder: The output folder of a trainer.
        name: What the page calls it.

    Returns:
        The run.

    Raises:
        ValueError: If the folder is none, holds no run, or its ledger has no step yet.
    """
    ledger = open_ledger(folder)
    # The clock first: of rows that a running run adds meanwhile those without a place on it are left out. And before
    # the streams what was measured of their gradients, which takes most memory while it is read.
    clock: pd.DataFrame = ledger.read("clock", _CLOCK).to_pandas()
    gradients = read_gradients(ledger, clock)
    rows = ledger.read("streams", _STREAMS)
    streams = by_stream(rows.rename_columns([_PASSES.get(name, name) for name in _STREAMS]), clock)
    if not streams:
        raise ValueError(f"The ledger of {folder} has no steps yet: if the run is in progress, try again later.")
    note = read_note(folder)
    start = pd.DataFrame({"step": [0], "epoch": [0.0], "samples": [0]})  # an evaluation may come before any step
    from_start = pd.concat([start, clock[["step", "epoch", "samples"]]])
    return Run(
        name,
        read_description(folder),
        _ended_in_words(note),
        clock,
        on_clock(_read_timings(ledger), clock),
        streams,
        by_stream(ledger.read("evaluations"), from_start),
        by_stream(ledger.read("metrics"), from_start),
        recorded_weights(folder, note),
        # A running run may have measured a stream of which it has written nothing else yet.
        _of_those(by_stream(ledger.read("comparisons"), clock), streams),
        _of_those(gradients.by_stream, streams),
        gradients.noise,
        gradients.cosines,
        by_stream(ledger.read("memories"), clock),
        by_stream(ledger.read("memory_classes"), clock),
    )


def _ended_in_words(note: dict[str, Any]) -> str:
    if note.get("ended") == "finished":
        return "finished"
    if note.get("ended") != "stopped":
        return "not noted: it goes on, or was killed"
    return f"stopped: {shortened(str(note.get('reason', 'no reason was noted')))}"


def _read_timings(ledger: Ledger) -> pd.DataFrame:
    # Older versions measured no gradients, and had no column for the time of it.
    rows: pd.DataFrame = ledger.read("timings", _TIMINGS).to_pandas()
    return rows.assign(train_seconds=rows["train_seconds"] - rows["probe_seconds"])


def _of_those(parts: dict[str, pd.DataFrame], streams: dict[str, pd.DataFrame]) -> dict[str, pd.DataFrame]:
    return {name: part for name, part in parts.items() if name in streams}
