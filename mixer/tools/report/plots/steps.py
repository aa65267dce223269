"""Batch size and learning rate, over the data clock."""

from collections.abc import Sequence
from typing import Any

from mixer.tools.records.run import Run
from mixer.tools.records.runs import last_epoch
from mixer.tools.report.plot import Plot, colours_of, line, panel, thin


def schedules(runs: Sequence[Run], most_points: int) -> Plot:
    """Plots the requested batch size, the learning rate and its factor where they change, one line per run."""
    colours = colours_of([run.name for run in runs])
    titles = {"batch_size": "Batch size, samples", "learning_rate": "Learning rate"}
    titles["learning_rate_factor"] = "Factor from the batch size, a part of the learning rate"
    panels = []
    for column, title in titles.items():
        # A point stands at the end of its step: a batch size's line is upright before it.
        style: dict[str, Any] = {"line_shape": "vh"} if column == "batch_size" else {}
        lines = [
            line(thin(run.clock, column, most_points), column, run.name, colours[run.name], **style) for run in runs
        ]
        if any(run.clock[column].nunique() > 1 for run in runs):
            panels.append(panel(title, lines, last_epoch(runs), rangemode="tozero"))
    caption = "Per step, over all ranks. The summary has what stays constant."
    return Plot("Batch size and learning rate", caption, panels, colours)
