"""How the tasks of continual runs were trained: the plots of a run, on the data clock of all tasks."""

from collections.abc import Callable, Sequence

import plotly.graph_objects as go

from mixer.analysis.report.clocked import last_in_words, pale_and_smooth
from mixer.analysis.report.plot import Plot, colours_of, panel
from mixer.analysis.report.plots import PLOTS
from mixer.analysis.report.plots.losses import losses, smoothed, smoothed_to_last
from mixer.analysis.report.run import Run, stream_names
from mixer.utils.text import duration
from tasks.report.axes import common_range
from tasks.report.joined import task_ends


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
    plots = [training_loss(runs, most_points), *(plot(runs, most_points) for plot in PLOTS if plot is not losses)]
    first, *others = [task_ends(run, task_names) for run in runs]
    if all(ends == first for ends in others):
        for plot in plots:
            _mark(plot, first)
    return [plot for plot in plots if plot.panels]


def training_rows(runs: Sequence[Run | None]) -> list[tuple[str, list[str]]]:
    """Gives the rows of the page's table that are about training.

    Args:
        runs: Joined runs; `None` for one without a step.

    Returns:
        Each row's name and a cell for each run.
    """
    return [(name, ["-" if run is None else cell(run) for run in runs]) for name, cell in _ROWS.items()]


def training_loss(runs: Sequence[Run], most_points: int) -> Plot:
    """Plots the training loss of all tasks and of the memory, a panel a run.

    Args:
        runs: The runs.
        most_points: Greatest number of points a line.

    Returns:
        The plot: two lines a stream.
    """
    colours = colours_of(stream_names(runs))
    end = max(run.clock["epoch"].max() for run in runs)
    ends = common_range([rows["loss"].to_numpy() for run in runs for rows in run.streams.values()])
    panels = [
        panel(
            run.name,
            [one for name in run.streams for one in _lines(run, name, colours[name], most_points)],
            end,
            range=list(ends),
        )
        for run in runs
    ]
    caption = (
        "Training loss of each task and of what is replayed, by epochs of data, the tasks one after the other. Pale: "
        "every step; line: the same, smoothed. " + " ".join(map(_in_words, runs))
    )
    return Plot("Training loss, task after task", caption, panels, colours, columns=2)


def _lines(run: Run, stream: str, colour: str, most_points: int) -> list[go.Scatter]:
    rows = run.streams[stream]
    return pale_and_smooth(rows, smoothed_to_last(rows), "loss", stream, colour, most_points)


def _mark(plot: Plot, epochs: Sequence[float]) -> None:
    for one in plot.panels:
        for epoch in epochs:
            one.figure.add_vline(epoch, line={"color": "#888888", "width": 1, "dash": "dot"})


def _in_words(run: Run) -> str:
    last = last_in_words(run.streams, {name: smoothed(rows) for name, rows in run.streams.items()}, "step")
    return f"In {run.name} {f'the last loss (smoothed) of a stream is {last}' if last else 'no loss is known'}."


_ROWS: dict[str, Callable[[Run], str]] = {
    "Steps": lambda run: f"{run.clock['step'].iloc[-1]:,}",
    "Samples on the data clock": lambda run: f"{run.clock['samples'].iloc[-1]:,}",
    "Samples, replayed ones too": lambda run: f"{run.clock['total'].sum():,}",
    "Time in loading": lambda run: duration(run.timings["load_seconds"].sum()),
    "Time in training": lambda run: duration(run.timings["train_seconds"].sum()),
}
