"""Runs side by side, from their ledgers."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
from rich.table import Table

from mixer.run_folder import open_ledger


@dataclass(frozen=True)
class RunSummary:
    """What a run's ledger says of it.

    Args:
        name: The run's folder.
        streams: One row a stream, by name: `first_loss` and `last_loss` of evaluations, `samples`, `coverage`,
            `weight` (mean).
        updates: Number of updates.
        evaluated: Names of the streams with an evaluation; others, such as memories, have no loss.
    """

    name: str
    streams: pd.DataFrame
    updates: int
    evaluated: frozenset[str]

    @property
    def table(self) -> pd.DataFrame:
        """The same with the streams' names as a column."""
        return self.streams.reset_index(names="stream")


def summarise(run: Path) -> RunSummary:
    """Reads a run.

    Args:
        run: The output folder of a trainer.

    Returns:
        The summary.

    Raises:
        ValueError: If the folder holds no ledger with rows.
    """
    ledger = open_ledger(run)
    rows = ledger.to_pandas()
    by_stream = rows.groupby("stream", sort=False)
    summary = pd.DataFrame(
        {
            "samples": by_stream["count"].sum(),
            "coverage": by_stream["coverage"].last(),
            "weight": by_stream["weight"].mean(),
        }
    )
    evaluations = ledger.evaluations()
    # The first and the last count, also where they are no numbers.
    summary.insert(0, "first_loss", evaluations.drop_duplicates("stream", keep="first").set_index("stream")["loss"])
    summary.insert(1, "last_loss", evaluations.drop_duplicates("stream", keep="last").set_index("stream")["loss"])
    evaluated = frozenset(evaluations["stream"]) & frozenset(summary.index)
    return RunSummary(run.name, summary, int(rows["step"].max()), evaluated)


def comparison_table(summaries: Sequence[RunSummary]) -> Table:
    """Makes a table of runs: what each stream got and gave in each of them.

    Args:
        summaries: The runs.

    Returns:
        The table, one row a stream, and the average and the worst loss below.
    """
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
            losses = summary.streams[summary.streams.index.isin(summary.evaluated)]
            first, last = (reduce(losses[column], skipna=False) for column in ("first_loss", "last_loss"))
            samples = f"{summary.streams['samples'].sum():,}" if label == "average" else ""
            cells += [_course(first, last) if summary.evaluated else "-", samples and f"({samples})", "", ""]
        table.add_row(label, *cells)
    return table


def _cells(summary: RunSummary, name: str) -> tuple[str, str, str, str]:
    if name not in summary.streams.index:
        return "-", "-", "-", "-"
    row = summary.streams.loc[name].to_dict()
    losses = _course(row["first_loss"], row["last_loss"]) if name in summary.evaluated else "-"
    coverage = "-" if pd.isna(row["coverage"]) else f"{row['coverage']:.0%}"
    return losses, f"{int(row['samples']):,}", coverage, f"{row['weight']:.3f}"


def _course(first: float, last: float) -> str:
    return f"{first:.3f} → {last:.3f}"
