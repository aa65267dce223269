"""Training of a continual run: its tasks joined on one data clock."""

from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from mixer.ledger.ledger import Ledger
from mixer.tools.records.run import Run
from mixer.tools.records.runs import last_epoch, stream_names
from mixer.tools.report.measurements import pale_and_smooth
from mixer.tools.report.plot import Plot, colours_of, panel
from mixer.tools.report.plots import PLOTS
from mixer.tools.report.plots.losses import losses, smoothed_to_last
from mixer.tools.report.plots.mixture import mixture
from mixer.utils.statistics import Measured, over_seeds
from tasks.task_folders import folder_of_task
from tasks.tools.report.answer import time_of
from tasks.tools.report.plots import common_range

# What counts from the beginning of a run: that of the tasks before is added.
_COUNTED = ("step", "samples", "tokens", "epoch")
_TABLES = ("clock", "timings", "streams", "evaluations", "metrics", "gradients", "noise", "memories")
_ROWS: dict[str, tuple[Callable[[Run], float], Callable[[Measured], str]]] = {
    "Steps": (lambda run: run.clock["step"].iloc[-1], lambda steps: steps.text("{:,.0f}")),
    "Samples on the data clock": (lambda run: run.clock["samples"].iloc[-1], lambda samples: samples.text("{:,.0f}")),
    "Samples including replay": (lambda run: run.clock["total"].sum(), lambda samples: samples.text("{:,.0f}")),
    "Time in loading": (lambda run: run.timings["load_seconds"].sum(), time_of),
    "Time in training": (lambda run: run.timings["train_seconds"].sum(), time_of),
}


def joined_run(folder: Path, name: str, task_names: Sequence[str]) -> Run | None:
    """Reads the tasks of a continual run, finished or going, and joins them.

    Args:
        folder: The run's folder.
        name: What the page calls it.
        task_names: Names of its tasks.

    Returns:
        The run, its streams in the order of the tasks and the memory last; `None` if no step is recorded yet.

    Raises:
        ValueError: If the ledger of a task is damaged.
    """
    folders = [folder_of_task(folder, number, task) for number, task in enumerate(task_names)]
    parts = [Run(task, name) for task in folders if _has_steps(task / "ledger")]
    return join(parts, task_names).but(folder=folder) if parts else None


def join(parts: Sequence[Run], first_streams: Sequence[str] = ()) -> Run:
    """Puts runs one after the other on one data clock.

    Args:
        parts: The runs, at least one, in order.
        first_streams: Streams that come before the others in the joined run, where it has them.

    Returns:
        One run, by the name of the first part. What streams count for themselves, such as their passes, begins anew
        with each part.
    """
    ends = [{name: part.clock[name].iloc[-1] for name in _COUNTED} for part in parts]
    done = [{name: sum(end[name] for end in ends[:number]) for name in _COUNTED} for number in range(len(parts))]
    joined = {name: _joined([getattr(part, name) for part in parts], done) for name in _TABLES}
    streams = joined.pop("streams")
    order = dict.fromkeys([*(name for name in first_streams if name in streams), *streams])
    joined["streams"] = {name: streams[name] for name in order}
    joined["interval_steps"] = max(part.interval_steps for part in parts)
    joined["description"] = {"streams": [row for part in parts for row in part.description.get("streams", [])]}
    # A task has no gradient in common with another one, and its own report shows the memory's: no cosines.
    return parts[-1].but(name=parts[0].name, cosines=None, **joined)


def task_ends(run: Run, task_names: Sequence[str]) -> list[float]:
    """Finds where tasks end on the data clock of a joined run.

    Args:
        run: The run.
        task_names: Names of its tasks, whose streams they are too.

    Returns:
        The epoch after the last step of each that has begun.
    """
    return [float(run.streams[name]["epoch"].iloc[-1]) for name in task_names if name in run.streams]


def _has_steps(folder: Path) -> bool:
    return (folder / "ledger.json").exists() and Ledger(folder).has_steps()


def _joined(values: Sequence[Any], done: Sequence[dict[str, float]]) -> Any:
    """Joins what the parts have in one field: a table, or tables by name."""
    if isinstance(values[0], pd.DataFrame):
        shifted = [
            rows.assign(**{name: rows[name] + before[name] for name in _COUNTED if name in rows})
            for rows, before in zip(values, done, strict=True)
        ]
        return pd.concat([rows for rows in shifted if len(rows)] or shifted[:1], ignore_index=True)
    joined = {}
    for key in dict.fromkeys(key for value in values for key in value):
        having = [(value[key], before) for value, before in zip(values, done, strict=True) if key in value]
        joined[key] = _joined(*zip(*having, strict=True))
    return joined


def training_plots(runs: Sequence[Run], task_names: Sequence[str], most_points: int) -> list[Plot]:
    """Plots joined runs.

    Args:
        runs: The runs, at least one; see `joined_run`.
        task_names: Names of the tasks of all runs.
        most_points: Greatest number of points a line.

    Returns:
        The plots: the loss, and all others of a run that have something to show. Dotted lines stand where tasks end, if
        that is at the same places in all runs.
    """
    drawn = [mixture, *(plot for plot in PLOTS if plot is not losses)]
    plots = [training_loss(runs, most_points), *(plot(runs, most_points) for plot in drawn)]
    first, *others = [task_ends(run, task_names) for run in runs]
    if all(ends == first for ends in others):
        for figure in (panel.figure for plot in plots for panel in plot.panels):
            for epoch in first:
                figure.add_vline(epoch, line={"color": "#888888", "width": 1, "dash": "dot"})
    return [plot for plot in plots if plot.panels]


def training_rows(runs: Collection[Sequence[Run]]) -> list[tuple[str, list[str]]]:
    """Returns the rows of the page's table that are about training.

    Args:
        runs: The joined runs of all seeds, for each column; none where no step is recorded.

    Returns:
        Each row's name and a cell for each column.
    """
    return [
        (name, [write(over_seeds([float(value(run)) for run in by_seed])) if by_seed else "-" for by_seed in runs])
        for name, (value, write) in _ROWS.items()
    ]


def training_loss(runs: Sequence[Run], most_points: int) -> Plot:
    """Plots the training loss of all tasks and of the memory, a panel a run.

    Args:
        runs: The runs.
        most_points: Greatest number of points a line.

    Returns:
        The plot: two lines a stream.
    """
    colours = colours_of(stream_names(runs))
    ends = common_range([rows["loss"].to_numpy() for run in runs for rows in run.streams.values()])
    panels = []
    for run in runs:
        lines = [
            line
            for name, rows in run.streams.items()
            for line in pale_and_smooth((rows, smoothed_to_last(rows)), "loss", name, colours[name], most_points)
        ]
        panels.append(panel(run.name, lines, last_epoch(runs), range=list(ends)))
    caption = (
        "Training loss of each task and of the replayed samples, by epochs of data, with the tasks in sequence. Pale: "
        "every step; line: smoothed."
    )
    return Plot("Training loss by task", caption, panels, colours, columns=2)
