"""Batch size, learning rate and time of a step, over the data clock."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mixer.tools.report.clocked import averaged, thin
from mixer.tools.report.plot import Panel, Plot, colours_of, line, panel
from mixer.tools.report.run import Run, last_epoch

_PARTS = {"train_seconds": "training", "load_seconds": "loading", "probe_seconds": "measuring gradients"}
_COLOURS = {"train_seconds": "#3b82c4", "load_seconds": "#e07b39", "probe_seconds": "#8a6fd1"}
# The first steps warm up: an axis up to them would press all others flat.
_SHOWN_QUANTILE, _HEADROOM = 0.98, 1.25


def batch_size(runs: Sequence[Run], most_points: int) -> Plot:
    """Plots the requested batch size, one line per run."""
    if all(run.clock["batch_size"].nunique() == 1 for run in runs):  # the summary says it
        return Plot("Batch size", "It stays as it is.", [])
    # A point stands at the end of its step: the line is upright before it.
    panels = _of_clock(runs, {"batch_size": "Samples"}, most_points, line_shape="vh")
    caption = "Samples of a step over all ranks, as the schedule asked for them."
    return Plot("Batch size", caption, panels, colours_of([run.name for run in runs]))


def learning_rate(runs: Sequence[Run], most_points: int) -> Plot:
    """Plots the learning rate and, where the batch size scales it, the factor, one line per run."""
    titles = {"learning_rate": "Learning rate"}
    if any((run.clock["learning_rate_factor"] != 1.0).any() for run in runs):
        titles["learning_rate_factor"] = "Factor from the batch size, a part of it"
    caption = "The learning rate of each step."
    panels = _of_clock(runs, titles, most_points)
    return Plot("Learning rate", caption, panels, colours_of([run.name for run in runs]))


def _of_clock(runs: Sequence[Run], titles: Mapping[str, str], most_points: int, **style: Any) -> list[Panel]:
    """Draws columns of the clock, a panel each, one line per run."""
    colours = colours_of([run.name for run in runs])
    return [
        panel(
            title,
            [line(thin(run.clock, column, most_points), column, run.name, colours[run.name], **style) for run in runs],
            last_epoch(runs),
            rangemode="tozero",
        )
        for column, title in titles.items()
    ]


def timings(runs: Sequence[Run], most_points: int) -> Plot:
    """Plots the seconds per step of the main rank by loading, training and measuring, stacked, one panel per run."""
    is_measured = any(run.timings["probe_seconds"].any() for run in runs)
    parts = [column for column in _PARTS if column != "probe_seconds" or is_measured]
    timed = {run.name: averaged(run.timings, parts, most_points) for run in runs if len(run.timings)}
    tops = [float(np.quantile(rows[parts].sum(axis=1), _SHOWN_QUANTILE)) for rows in timed.values()]
    axis = {"range": [0, _HEADROOM * max(tops, default=0.0) or 1.0], "ticksuffix": " s"}
    style: dict[str, Any] = {"stackgroup": "seconds", "line": {"width": 0.5}}
    panels = [
        panel(
            name,
            [line(rows, column, _PARTS[column], _COLOURS[column], **style) for column in parts],
            last_epoch(runs),
            **axis,
        )
        for name, rows in timed.items()
    ]
    caption = (
        "Where the time of a step goes on the main rank: loading that does not vanish is waiting for data. A few slow "
        "steps may go beyond the top."
    )
    return Plot("Time of a step", caption, panels, {_PARTS[column]: _COLOURS[column] for column in parts})
