"""Losses above a reference model, and the fall of losses by each step."""

from collections.abc import Sequence

import pandas as pd

from mixer.analysis.report.measurements import axis_with_zero, lines_by_stream
from mixer.analysis.report.plot import Plot, colours_of, panel
from mixer.analysis.report.plots.losses import smoothed
from mixer.analysis.report.run import Run, stream_names
from mixer.utils.text import between

_TITLES = {"excess_loss": "above the reference", "fall": "fall by the step"}
_Figures = dict[str, dict[str, tuple[pd.DataFrame, pd.DataFrame]]]  # by column and stream, raw and smoothed


def compared_losses(runs: Sequence[Run], most_points: int) -> Plot:
    """Plots the excess over a reference and the fall of the loss by each step, one panel per run that recorded it.

    Two lines per stream.
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
            f"{run}: {_TITLES[column]}", lines_by_stream(by_stream, column, colours, most_points), end, **axes[column]
        )
        for run, figures in drawn.items()
        for column, by_stream in figures.items()
        if by_stream
    ]
    caption = (
        "Loss of each stream above that of the reference model on the same items (at least 0), and decrease of the "
        "loss of a step's samples by that step, by epochs of data. Pale: every step; line: the same, smoothed. "
        + " ".join(_in_words(run, figures) for run, figures in drawn.items())
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
