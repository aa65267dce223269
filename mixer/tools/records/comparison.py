"""Runs side by side, as tables for a terminal, and what keeps them from being compared."""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd
from rich.console import Group, RenderableType
from rich.table import Table

from mixer.policies.contract import UNITS, Unit
from mixer.tools.records.summary import RunSummary
from mixer.utils.text import first_of, listed

_LIKE = 1.03  # more apart in samples or tokens, runs are told to differ
_MOST_WHOLE = 2  # runs side by side on a screen, with all their columns
_Rows = dict[str, list[list[str]]]  # by the first cell, the cells of each run


def comparison(summaries: Sequence[RunSummary]) -> RenderableType:
    """Renders runs side by side: losses and samples, and other metrics if there are any."""
    metrics = metrics_table(summaries)
    return Group(comparison_table(summaries), *([metrics] if metrics.row_count else []))


def comparison_table(summaries: Sequence[RunSummary]) -> Table:
    """Returns a table of losses and samples: the objective first, then streams, average (`eval_loss`) and worst.

    An objective that is the loss of one target is the row of that target, and of a single evaluation set there is no
    average. Of more than two runs it shows the last losses and the samples alone. If no run was evaluated, it shows the
    losses of training.
    """
    title = "Validation loss and samples by stream"
    if not any(summary.evaluated for summary in summaries):
        title = "Training loss (mean over the first and the last tenth of the steps) and samples by stream"
        summaries = [_of_training(summary) for summary in summaries]
    is_short = len(summaries) > _MOST_WHOLE
    units = [unit for unit in UNITS[1:] if any(summary.unit == unit for summary in summaries)]
    titles = ["\nsamples", *(f"share\nof {unit}" for unit in units), "\ncoverage", "mean\nweight"]
    titles = titles[: len(titles) - 2 * is_short]
    table = Table(title=title, caption="\n".join(_remarks(summaries)) or None)
    table.add_column("stream", justify="left")
    for summary in summaries:
        heads = [f"{summary.name}\n{'loss' if is_short else 'loss first → last'}"]
        for head in (*heads, f"{summary.steps} steps{titles[0]}", *titles[1:]):
            table.add_column(head, justify="right")
    names, width = dict.fromkeys(name for summary in summaries for name in summary.streams.index), 1 + len(titles)
    rows = {name: [_cells(summary, name, is_short, units)[:width] for summary in summaries] for name in names}
    objective = _objective(summaries, rows, [""] * (width - 1))
    for part in (objective, rows, _over_all(summaries, width)):
        for name, cells in part.items():
            table.add_row(name, *itertools.chain.from_iterable(cells), style="bold" if part is objective else None)
        table.add_section()
    return table


def _objective(summaries: Sequence[RunSummary], rows: _Rows, blank: list[str]) -> _Rows:
    """Takes out the row of the only target, or makes one of the objective; tells how far each run is from the first."""
    if all(summary.objective is None for summary in summaries):
        return {}
    target, measure = _only_target(summaries) or ("", "")
    is_row = measure == "loss" and target in rows
    ends = [one.streams["last_loss"].get(target, math.nan) if is_row else one.objectives[1] for one in summaries]
    is_short = len(summaries) > _MOST_WHOLE
    own = [["-" if one.objective is None else _over_sets(one, one.objectives, is_short), *blank] for one in summaries]
    own = rows.pop(target) if is_row else own
    for cells, end in list(zip(own, ends, strict=True))[1:]:
        change = end / ends[0] - 1.0 if ends[0] else math.nan
        cells[0] += "" if math.isnan(change) else f"\n{100 * change:+.1f} %"
    label = f"objective:\n{target}" + (f", {measure}" if measure != "loss" else "") if target else "objective"
    return {label: own}


def _over_all(summaries: Sequence[RunSummary], width: int) -> _Rows:
    """Gives the rows of all sets together: samples, and average and worst loss of several."""
    is_short, has_several = len(summaries) > _MOST_WHOLE, any(len(one.evaluated) > 1 for one in summaries)
    means = [_over_sets(one, one.mean_losses, is_short) if has_several else "" for one in summaries]
    totals = [[mean, f"({one.streams['samples'].sum():,})"] for mean, one in zip(means, summaries, strict=True)]
    rows = {"average" if has_several else "all": totals}
    if has_several:
        rows["worst"] = [[_over_sets(one, one.worst_losses, is_short)] for one in summaries]
    return {name: [own + [""] * (width - len(own)) for own in cells] for name, cells in rows.items()}


def _only_target(summaries: Sequence[RunSummary]) -> tuple[str, str] | None:
    """Returns target and measure if they are the whole objective of all runs that declare one; else `None`."""
    goals = [summary.objective for summary in summaries if summary.objective is not None]
    found = {(name, goal.metric) for goal in goals for name, weight in goal.importance.items() if weight > 0.0}
    return found.pop() if len(found) == 1 else None


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


def metrics_table(summaries: Sequence[RunSummary]) -> Table:
    """Returns a table of `compute_metrics` results, one row per set and metric."""
    table = Table(title="Metrics by stream")
    table.add_column("stream", justify="left")
    table.add_column("metric", justify="left")
    courses: dict[tuple[str, str], list[str]] = {}
    for place, summary in enumerate(summaries):
        table.add_column(f"{summary.name}\nfirst → last", justify="right")
        columns = (summary.metrics[column].tolist() for column in ("stream", "metric", "first", "last"))
        for name, metric, first, last in zip(*columns, strict=True):
            key = (name, metric.removeprefix("eval_"))  # as TRL names those of every set
            is_count = key[1].startswith("num_")  # such as TRL's num_tokens
            text = f"{first:,.0f} → {last:,.0f}" if is_count else _course(first, last)
            courses.setdefault(key, ["-"] * len(summaries))[place] = text
    if all(summary.objective is not None for summary in summaries):  # then it is the first row of the other table
        courses.pop(_only_target(summaries) or ("", ""), None)
    for (name, metric), cells in courses.items():
        table.add_row(name, metric, *cells)
    return table


def _over_sets(summary: RunSummary, course: tuple[float, float], is_short: bool) -> str:
    return _course(*course, is_short) if summary.evaluated else "-"


def _cells(summary: RunSummary, name: str, is_short: bool, units: Sequence[Unit]) -> list[str]:
    if name not in summary.streams.index:
        return ["-"] * (4 + len(units))
    row: dict[str, Any] = {column: summary.streams.at[name, column] for column in summary.streams.columns}
    losses = _course(row["first_loss"], row["last_loss"], is_short) if name in summary.evaluated else "-"
    coverage = "-" if pd.isna(row["coverage"]) else f"{row['coverage']:.0%}"
    if pd.isna(row["samples"]):  # an evaluation set that is not a stream
        return [losses, *["-"] * (3 + len(units))]
    tokens = [f"{row[f'{unit[:-1]}_share']:.1%}" for unit in units]
    return [losses, f"{int(row['samples']):,}", *tokens, coverage, f"{row['weight']:.3f}"]


def _course(first: float, last: float, is_short: bool = False) -> str:
    return f"{last:.3f}" if is_short else f"{first:.3f} → {last:.3f}"
