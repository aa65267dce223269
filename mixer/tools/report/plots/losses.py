"""Losses and metrics of each stream."""

from collections.abc import Collection, Sequence

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from mixer.tools.records.run import Run
from mixer.tools.records.runs import declared, last_epoch, stream_names
from mixer.tools.report.judging import course_of
from mixer.tools.report.measurements import pale_and_smooth
from mixer.tools.report.plot import Plot, colours_of, line, panel, thin
from mixer.utils.arrays import FloatArray, Int64Array
from mixer.utils.text import listed

# The smoothed line forgets over this part of a stream's steps: enough to see a trend through the noise.
_SMOOTHED_PART = 0.05
# More panels are not looked at; all metrics are in the tables.
MOST_METRICS = 12


def objective(runs: Sequence[Run], most_points: int) -> Plot:
    """Plots what runs are judged by at each evaluation, one line per run: the declared objective, else the mean loss.

    There are no panels without evaluations, or where runs without an objective were evaluated on different sets.
    """
    goal, colours = declared(runs), colours_of([run.name for run in runs])
    title = "Validation loss" if goal is None else "Objective"
    if goal is None and any({*run.evaluations} != {*runs[0].evaluations} for run in runs):
        return Plot(title, "", [])
    courses = {run.name: course_of(run, goal) for run in runs if run.evaluations}
    lines = [
        line(thin(rows, "value", most_points), "value", name, colours[name], mode="lines+markers")
        for name, rows in courses.items()
        if rows["value"].notna().any()
    ]
    words = _mean_of(runs[0].evaluations) if goal is None else goal.in_words
    direction = "greater" if goal is not None and goal.greater_is_better else "lower"
    caption = f"The {words}; {direction} is better."
    return Plot(title, caption, [panel(title, lines, last_epoch(runs))] if lines else [], colours)


def _mean_of(sets: Collection[str]) -> str:
    return "mean loss of all sets" if len(sets) > 1 else f"loss of {listed([*sets])}"


def losses(runs: Sequence[Run], most_points: int) -> Plot:
    """Plots the losses, one panel per stream, three lines per run."""
    colours = colours_of([run.name for run in runs])
    goal = declared(runs)
    targets = () if goal is None else goal.names
    names = dict.fromkeys([*targets, *stream_names(runs), *(name for run in runs for name in run.evaluations)])
    panels = [
        panel(
            name,
            [trace for run in runs for trace in _lines(run, name, colours[run.name], most_points)],
            last_epoch(runs),
        )
        for name in names
    ]
    caption = (
        "Where validation rises while training falls, a stream is overfitted; where both lie flat, it is learned or "
        "starved. Pale: every step's training loss; line: smoothed; dotted with marks: validation loss."
    )
    return Plot("Loss", caption, panels, colours)


def terms(runs: Sequence[Run], most_points: int) -> Plot:
    """Plots what methods added to the loss, one panel per method, one line per run."""
    colours, panels = colours_of([run.name for run in runs]), []
    for name in dict.fromkeys(name for run in runs for name in run.terms):
        own = {run.name: thin(run.terms[name], "value", most_points) for run in runs if name in run.terms}
        lines = [line(rows, "value", run, colours[run], mode="lines+markers") for run, rows in own.items()]
        panels.append(panel(name, lines, last_epoch(runs)))
    caption = (
        "Means over the steps of a log entry, for each item of a step; losses are without them. ReferenceKL: how far "
        "the model has moved from what it said before the run (λ T² KL), on the rows that it is held to."
    )
    return Plot("Terms of methods", caption, panels, colours)


def smoothed(rows: pd.DataFrame) -> pd.Series:
    """Averages the training loss of a stream over its last steps, weighted by items.

    Args:
        rows: One row per step: items and loss.

    Returns:
        The averages; NaN before the first step with a loss.
    """
    span = max(1.0, _SMOOTHED_PART * len(rows))
    items = rows["items"].where(rows["loss"].notna(), 0).astype("float64")
    sums = (rows["loss"].fillna(0.0) * items).ewm(span=span).mean()
    return sums / items.ewm(span=span).mean()


def last_smoothed(losses: FloatArray, items: Int64Array) -> float:
    """Gives the last of the averages of `smoothed`, for tables of very many streams."""
    span = max(1.0, _SMOOTHED_PART * len(losses))
    is_there = ~np.isnan(losses)
    weights = (1.0 - 2.0 / (span + 1.0)) ** np.arange(len(losses) - 1, -1, -1.0)
    weights *= np.where(is_there, items, 0)
    total = float(weights.sum())
    return float(weights @ np.where(is_there, losses, 0.0)) / total if total else np.nan


def smoothed_to_last(rows: pd.DataFrame) -> pd.DataFrame:
    """Smooths the training loss of a stream up to its last finite loss, NaN afterwards.

    Args:
        rows: One row per step: items and loss.
    """
    return rows.assign(loss=smoothed(rows).where(rows["loss"].bfill().notna()))


def _lines(run: Run, stream: str, colour: str, most_points: int) -> list[go.Scatter]:
    lines = []
    if stream in run.streams:
        rows = run.streams[stream]
        course = rows, smoothed_to_last(rows)
        lines += pale_and_smooth(course, "loss", run.name, colour, most_points, f"{run.name}, training")
    if stream in run.evaluations:
        rows = thin(run.evaluations[stream], "loss", most_points)
        style = {"mode": "lines+markers", "line": {"dash": "dot"}}
        lines.append(line(rows, "loss", run.name, colour, f"{run.name}, validation", **style))
    return lines


def metrics(runs: Sequence[Run], most_points: int) -> Plot:
    """Plots the metrics of evaluation sets, one panel per metric and run, one line per set."""
    sets = dict.fromkeys([*stream_names(runs), *(name for run in runs for name in run.metrics)])
    colours = colours_of([name for name in sets if any(name in run.metrics for run in runs)])
    known = list(dict.fromkeys(name for run in runs for rows in run.metrics.values() for name in rows["metric"]))
    panels = []
    for metric in known[:MOST_METRICS]:
        for run in runs:
            own = {name: rows[rows["metric"] == metric] for name, rows in run.metrics.items()}
            own = {name: thin(rows, "value", most_points) for name, rows in own.items() if len(rows)}
            if own:
                lines = [line(rows, "value", name, colours[name], mode="lines+markers") for name, rows in own.items()]
                panels.append(panel(f"{run.name}: {metric}", lines, last_epoch(runs)))
    more = len(known) - MOST_METRICS
    caption = (
        "Results of compute_metrics for each evaluation set: where lines part, some sets gain while others lose."
        f"{f' The table of streams has {more} more metrics.' if more > 0 else ''}"
    )
    return Plot("Metrics", caption, panels, colours)
