"""What a report reads of a run: its ledger, laid over the data clock."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from mixer.ledger import Ledger


@dataclass(frozen=True)
class Run:
    """A run, each of its tables with the data clock's `epoch` and `samples` in every row.

    Args:
        name: What the page calls it, other than every other run's.
        clock: The ledger's table of that name, one row an update.
        streams: By name of the stream, one row an update: step, weight, count, items, loss, seen, coverage, and
            `passes` (the stream's own epochs).
        evaluations: By name of the evaluation set, one row an evaluation: step, loss.
        comparisons: By name of the stream, one row an update: step, excess_loss, loss_after; empty where losses were
            not compared.
        gradients: By name of the stream, one row a measurement of its gradient: step, squared_norm, variance; empty
            where none was measured.
        memories: By name of the stream, what a replay buffer held: step, source, entries; empty without buffers.
        cosines: One row per measurement and pair of streams: step, stream, other, cosine.
        load_seconds: Time spent in loading, of the main rank.
        train_seconds: Time spent in training, of the main rank.
    """

    name: str
    clock: pd.DataFrame
    streams: dict[str, pd.DataFrame]
    evaluations: dict[str, pd.DataFrame]
    comparisons: dict[str, pd.DataFrame]
    gradients: dict[str, pd.DataFrame]
    memories: dict[str, pd.DataFrame]
    cosines: pd.DataFrame
    load_seconds: float
    train_seconds: float


def read_runs(folders: Sequence[Path]) -> list[Run]:
    """Reads runs, finished or going.

    Args:
        folders: Output folders of trainers.

    Returns:
        The runs, named after their folders, or by the paths as given where two folders have the same name.

    Raises:
        ValueError: If a folder is given twice, is none, holds no run, or its ledger has no update yet.
    """
    resolved = [folder.resolve() for folder in folders]
    for number, folder in enumerate(resolved):
        if folder in resolved[:number]:
            raise ValueError(f"{folders[number]} is given twice: give each run once.")
    names = [folder.name for folder in resolved]
    return [
        _read_run(folder, name if names.count(name) == 1 else str(folder))
        for folder, name in zip(folders, names, strict=True)
    ]


def stream_names(runs: Sequence[Run]) -> list[str]:
    """Lists the streams of all runs, so that each has the same place and colour in every one.

    Args:
        runs: The runs.

    Returns:
        Names, in the order of the first run that has them.
    """
    return list(dict.fromkeys(name for run in runs for name in run.streams))


def _read_run(folder: Path, name: str) -> Run:
    if not folder.is_dir():
        raise ValueError(f"There is no folder {folder}: give the output folder of a run (training.output_dir).")
    if not (folder / "ledger" / "ledger.json").is_file():
        raise ValueError(
            f"{folder} is not the folder of a run: it has no ledger/ledger.json. Give the output folder of a run "
            "(training.output_dir)."
        )
    ledger = Ledger(folder / "ledger")
    rows = ledger.to_pandas().rename(columns={"epoch": "passes"})  # before the clock: a run may add rows meanwhile
    clock, updates = ledger.clock(), ledger.updates()
    rows = _on_clock(rows.drop(columns=["tokens", "unique", "staleness", "undelivered"]), clock)
    if rows.empty:
        raise ValueError(
            f"The ledger of {folder} has no update yet: if the run is still going, try again when it has done some."
        )
    streams = _by_stream(rows)
    comparisons = _on_clock(ledger.comparisons(), clock)
    gradients = _on_clock(ledger.gradients()[["step", "stream", "squared_norm", "variance"]], clock)
    start = pd.DataFrame({"step": [0], "epoch": [0.0], "samples": [0]})  # an evaluation may come before any update
    evaluations = _on_clock(ledger.evaluations(), pd.concat([start, clock[["step", "epoch", "samples"]]]))
    return Run(
        name,
        clock,
        streams,
        _by_stream(evaluations),
        # A running run may have measured a stream of which it has written nothing else yet.
        {name: part for name, part in _by_stream(comparisons).items() if name in streams},
        {name: part for name, part in _by_stream(gradients).items() if name in streams},
        _by_stream(_on_clock(ledger.memories(), clock)),
        _on_clock(ledger.cosines(), clock),
        float(updates["load_seconds"].sum()),
        float(updates["train_seconds"].sum()),
    )


def _on_clock(rows: pd.DataFrame, clock: pd.DataFrame) -> pd.DataFrame:
    """Adds where the run stood; rows are left out whose place a running run has not written yet."""
    return rows.merge(clock[["step", "epoch", "samples"]], on="step")


def _by_stream(rows: pd.DataFrame) -> dict[str, pd.DataFrame]:
    return {str(name): part.drop(columns="stream") for name, part in rows.groupby("stream", sort=False)}
