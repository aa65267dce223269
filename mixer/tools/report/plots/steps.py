"""Batch size and learning rate, over the data clock."""

from collections.abc import Mapping, Sequence
from typing import Any

from mixer.tools.report.clocked import thin
from mixer.tools.report.plot import Panel, Plot, colours_of, line, panel
from mixer.tools.report.run import Run, last_epoch


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
