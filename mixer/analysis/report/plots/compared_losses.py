"""What losses are compared with: those of a reference model, and those after the optimizer step."""

from collections.abc import Sequence

import pandas as pd

from mixer.analysis.report.clocked import axis_with_zero, lines_by_stream
from mixer.analysis.report.plot import Plot, colours_of, panel
from mixer.analysis.report.plots.losses import smoothed
from mixer.analysis.report.run import Run, stream_names
from mixer.utils.text import between

_TITLES = {"excess_loss": "above the reference", "fall": "fall by the step"}
_Figures = dict[str, dict[str, tuple[pd.DataFrame, pd.DataFrame]]]  # by column and stream, raw and smoothed


def compared_losses(runs: Sequence[Run], most_points: int) -> Plot:
    """Plots what losses exceed a reference by, and by how much steps lower them, a panel each a run that has it.

    Args:
        runs: The runs.
        most_points: Greatest number of points a line.

    Returns:
        The plot: two lines a stream; without panels if no run compared losses.
    """
    colours = colours_of(stream_names(runs))
    end = max(run.clock["epoch"].max() for run in runs)
    drawn = {run.name: _figures(run) for run in runs}
    axes = {
        column: axis_with_zero([rows[column] for one in drawn.values() for rows, _ in one[column].values()])
        for column in _TITLES
    }
    panels = [
        panel(
            f"{run}: {_TITLES[column]}",
            lines_by_stream(by_stream, column, colours, most_points),
            end,
            **axes[column],
        )
        for run, figures in drawn.items()
        for column, by_stream in figures.items()
        if by_stream
    ]
    caption = (
        "By how much the loss of each stream's items exceeds that of the reference model on the same ones (never less "
        "than 0), and by how much a step lowers the loss of its own samples, by epochs of data. Pale: every "
        "step; line: the same, smoothed. " + " ".join(_in_words(run, figures) for run, figures in drawn.items())
    )
    return Plot("Losses compared", caption, panels, colours, columns=2)


def _figures(run: Run) -> _Figures:
    figures: _Figures = {column: {} for column in _TITLES}
    for name, compared in run.comparisons.items():
        rows = compared.merge(run.streams[name][["step", "loss", "items"]], on="step")
        rows["fall"] = rows["loss"] - rows["loss_after"]
        for column in _TITLES:
            if rows[column].notna().any():
                smooth = rows.assign(**{column: smoothed(rows, column)})
                figures[column][name] = rows, smooth
    return figures


def _in_words(run: str, figures: _Figures) -> str:
    words = []
    for column, text in (("excess_loss", "the last excess"), ("fall", "the last fall")):
        last = {name: float(smooth[column].dropna().iloc[-1]) for name, (_, smooth) in figures[column].items()}
        if last:
            words.append(f"{text} (smoothed) is {between(last, '{:.3g}'.format)}")
    return f"In {run} {', '.join(words) or 'losses were not compared'}."
