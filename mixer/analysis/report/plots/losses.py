"""Training and validation loss of each stream."""

from collections.abc import Sequence

import pandas as pd
import plotly.graph_objects as go

from mixer.analysis.report.clocked import last_in_words, thin
from mixer.analysis.report.plot import Plot, colours_of, line, panel
from mixer.analysis.report.run import Run, stream_names

# The smoothed line forgets over this part of a stream's steps: enough to see a trend through the noise.
_SMOOTHED_PART = 0.05


def losses(runs: Sequence[Run], most_points: int) -> Plot:
    """Plots the losses, one panel per stream, three lines per run."""
    colours = colours_of([run.name for run in runs])
    end = max(run.clock["epoch"].max() for run in runs)
    names = dict.fromkeys([*stream_names(runs), *(name for run in runs for name in run.evaluations)])
    panels = [
        panel(name, [one for run in runs for one in _lines(run, name, colours[run.name], most_points)], end)
        for name in names
    ]
    caption = (
        "Loss by stream and epochs of data. Pale: every step's training loss; line: the same, smoothed; dotted with "
        "marks: validation loss. " + " ".join(map(_in_words, runs))
    )
    return Plot("Loss", caption, panels, colours)


def smoothed(rows: pd.DataFrame, column: str = "loss") -> pd.Series:
    """Averages the training loss of a stream over its last steps, weighted by items.

    Args:
        rows: One row per step: items and the column.
        column: Another mean per item to average in place of the loss.

    Returns:
        The averages; NaN before the first step with a loss.
    """
    span = max(1.0, _SMOOTHED_PART * len(rows))
    items = rows["items"].where(rows[column].notna(), 0).astype("float64")
    sums = (rows[column].fillna(0.0) * items).ewm(span=span).mean()
    return sums / items.ewm(span=span).mean()


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
        raw, smooth = (thin(one, "loss", most_points) for one in (rows, smoothed_to_last(rows)))
        lines.append(line(raw, "loss", run.name, colour, f"{run.name}, this step", opacity=0.4, line={"width": 1}))
        lines.append(line(smooth, "loss", run.name, colour, f"{run.name}, training"))
    if stream in run.evaluations:
        rows = thin(run.evaluations[stream], "loss", most_points)
        style = {"mode": "lines+markers", "line": {"dash": "dot"}}
        lines.append(line(rows, "loss", run.name, colour, f"{run.name}, validation", **style))
    return lines


def _in_words(run: Run) -> str:
    training = last_in_words(run.streams, {name: smoothed(rows) for name, rows in run.streams.items()}, "step")
    validation = last_in_words(run.evaluations, {name: rows["loss"] for name, rows in run.evaluations.items()}, "step")
    words = [
        f"the last {kind} is {text}"
        for kind, text in (("training loss (smoothed)", training), ("validation loss", validation))
        if text
    ]
    return f"In {run.name} {', '.join(words) or 'no loss is known'}."
