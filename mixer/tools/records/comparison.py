"""Runs side by side, as a table for a terminal, and what keeps them from being compared."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pandas as pd
from rich.table import Column, Table

from mixer.tools.records.summary import RunSummary
from mixer.utils.text import first_of, listed

_LIKE = 1.03  # more apart in samples or tokens, runs are told to differ
_Rows = dict[tuple[str, str], list[str]]  # by kind and name, so that a stream may be called "average"


def comparison(summaries: Sequence[RunSummary]) -> Table:
    """Renders runs side by side: the objective first, then streams, the average and the worst loss, and metrics.

    If no run was evaluated, it shows the losses of training.
    """
    title = "Validation loss, samples and metrics"
    if not any(summary.evaluated for summary in summaries):
        title = "Training loss (mean over the first and the last tenth of the steps) and samples"
        summaries = [_of_training(summary) for summary in summaries]
    heads = [
        head
        for one in summaries
        for head in (f"{one.name}\nfirst → last", f"{one.steps} steps\nsamples", f"share\nof {one.unit}")
    ]
    table = Table("stream", *(Column(head, justify="right") for head in heads), title=title)
    table.caption = "\n".join(_remarks(summaries)) or None
    columns = [_column(summary) for summary in summaries]
    first = [("", "objective")] if any(summary.objective is not None for summary in summaries) else []
    for key in dict.fromkeys([*first, *(key for column in columns for key in column)]):
        table.add_row(key[1], *(cell for column in columns for cell in column.get(key, ["-", "", ""])))
    return table


def _column(summary: RunSummary) -> _Rows:
    """Gives the cells of a run: loss or metric, samples, share."""
    share = "share" if summary.unit == "samples" else f"{summary.unit[:-1]}_share"
    rows: _Rows = {}
    if summary.objective is not None:
        rows["", "objective"] = _course(*summary.objectives)
    for name, row in summary.streams.to_dict("index").items():
        cells = _course(row["first_loss"], row["last_loss"]) if name in summary.evaluated else ["-", "", ""]
        if not pd.isna(row["samples"]):  # else an evaluation set that is not a stream
            cells[1:] = f"{row['samples']:,}", f"{row[share]:.1%}"
        rows["stream", str(name)] = cells
    if len(summary.evaluated) > 1:
        rows["over all", "average"] = _course(*summary.mean_losses)
        rows["over all", "worst"] = _course(*summary.worst_losses)
    for name, metric, first, last in summary.metrics[["stream", "metric", "first", "last"]].itertuples(index=False):
        rows["metric", f"{name}, {metric.removeprefix('eval_')}"] = _course(first, last)
    return rows


def _course(first: float, last: float) -> list[str]:
    return [f"{first:,.3f} → {last:,.3f}", "", ""]


def _remarks(summaries: Sequence[RunSummary]) -> list[str]:
    """Says what a reader of the table must know: intervals, policies by tokens, and runs that cannot be compared."""
    remarks = [f"{one.name}: rows of {one.interval_steps} steps" for one in summaries if one.interval_steps > 1]
    if any(one.unit != "samples" for one in summaries):
        remarks.append(", ".join(f"{one.name}: {one.policy or 'unknown'}" for one in summaries))
    for unit in ("samples", "tokens"):
        amounts = {one.name: int(one.streams[unit].sum()) for one in summaries}
        if unlike := unlike_amounts(amounts, unit):
            remarks.append(unlike)
    if judged := judged_apart({one.name: one.development_rows for one in summaries}):
        remarks.append(judged)
    return remarks


def unlike_amounts(amounts: Mapping[str, float], unit: str) -> str:
    """Warns that runs trained on different amounts of data; empty if they differ by a few per cent at most.

    Args:
        amounts: Samples, tokens or labels by run.
        unit: Which of them.
    """
    if max(amounts.values()) <= _LIKE * min(amounts.values()):
        return ""
    return f"They were not trained alike: {listed([f'{number:,.0f} {unit} in {n}' for n, number in amounts.items()])}."


def judged_apart(taken: Mapping[str, Mapping[str, int]]) -> str:
    """Warns that runs were evaluated on different rows, as some were development rows in one only; empty if not.

    Args:
        taken: By run, the number of rows by evaluation set that were set aside as development rows.
    """
    sets = dict.fromkeys(name for own in taken.values() for name in own)
    parts = [
        f"{', '.join(f'{own.get(name, 0)} in {run}' for run, own in taken.items())} rows of {name} were set aside"
        for name in sets
        if len({own.get(name, 0) for own in taken.values()}) > 1
    ]
    if not parts:
        return ""
    rows = "; ".join(first_of(parts))
    return f"They were evaluated on different rows: {rows}. Set the objective's development_share in all."


def _of_training(summary: RunSummary) -> RunSummary:
    """Puts the losses of training in the place of those of evaluations."""
    streams = summary.streams.assign(
        first_loss=summary.streams["first_train_loss"], last_loss=summary.streams["last_train_loss"]
    )
    trained = frozenset(streams.index[streams["last_loss"].notna()])
    return replace(summary, streams=streams, evaluated=trained, eval_weights=None, objective=None)
