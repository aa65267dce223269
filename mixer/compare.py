"""Runs side by side, from their ledgers."""

import math
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
from rich.table import Table

from mixer.ledger import Ledger


@dataclass(frozen=True)
class RunSummary:
    """What a run's ledger says of it.

    Args:
        name: The run's folder.
        streams: One row a stream, by name: `first_loss` and `last_loss` of evaluations, `samples`, `coverage`,
            `weight` (mean).
        updates: Number of updates.
    """

    name: str
    streams: pd.DataFrame
    updates: int


def summarise(run: Path) -> RunSummary:
    """Reads a run.

    Args:
        run: The output folder of a trainer.

    Returns:
        The summary.

    Raises:
        ValueError: If the folder holds no ledger with rows.
    """
    ledger = Ledger(run / "ledger")
    rows = ledger.to_pandas()
    if rows.empty:
        raise ValueError(f"{run} is not the folder of a run: there is no ledger with rows in it.")
    by_stream = rows.groupby("stream", sort=False)
    summary = pd.DataFrame(
        {
            "samples": by_stream["count"].sum(),
            "coverage": by_stream["coverage"].last(),
            "weight": by_stream["weight"].mean(),
        }
    )
    evaluations = ledger.evaluations().groupby("stream", sort=False)["loss"]
    summary.insert(0, "first_loss", evaluations.first())
    summary.insert(1, "last_loss", evaluations.last())
    return RunSummary(run.name, summary, int(rows["step"].max()))


def compare(runs: list[Path]) -> Table:
    """Makes a table of runs: what each stream got and gave in each of them.

    Args:
        runs: Output folders.

    Returns:
        The table, one row a stream, and the average and the worst loss below.

    Raises:
        ValueError: If a folder holds no run.
    """
    summaries = [summarise(run) for run in runs]
    table = Table(title="Validation loss and samples by stream")
    table.add_column("stream", justify="left")
    for summary in summaries:
        table.add_column(f"{summary.name}\nloss first → last", justify="right")
        table.add_column(f"{summary.updates} updates\nsamples", justify="right")
        table.add_column("\ncoverage", justify="right")
        table.add_column("mean\nweight", justify="right")
    names = list(dict.fromkeys(name for summary in summaries for name in summary.streams.index))
    for name in names:
        table.add_row(name, *(cell for summary in summaries for cell in _cells(summary, name)))
    table.add_section()
    for label, reduce in (("average", pd.Series.mean), ("worst", pd.Series.max)):
        cells = []
        for summary in summaries:
            first, last = reduce(summary.streams["first_loss"]), reduce(summary.streams["last_loss"])
            samples = f"{summary.streams['samples'].sum():,}" if label == "average" else ""
            cells += [_course(first, last), samples and f"({samples})", "", ""]
        table.add_row(label, *cells)
    return table


def _cells(summary: RunSummary, name: str) -> tuple[str, str, str, str]:
    if name not in summary.streams.index:
        return "-", "-", "-", "-"
    row = summary.streams.loc[name].to_dict()
    losses = _course(row["first_loss"], row["last_loss"])
    coverage = "-" if pd.isna(row["coverage"]) else f"{row['coverage']:.0%}"
    return losses, f"{int(row['samples']):,}", coverage, f"{row['weight']:.3f}"


def _course(first: float, last: float) -> str:
    """Writes losses; streams without an evaluation, such as memories, have none."""
    return "-" if math.isnan(first) and math.isnan(last) else f"{first:.3f} → {last:.3f}"
