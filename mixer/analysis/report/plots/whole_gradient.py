"""Norm and noise of the gradient of the mixture."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from mixer.analysis.report.measurements import log_axis, pale_and_smooth, smoothed
from mixer.analysis.report.plot import Plot, colours_of, panel
from mixer.analysis.report.run import Run
from mixer.utils.text import listed

_TITLES = {"norm": "Norm, before clipping", "noise": "Noise scale, samples"}
_Figures = dict[str, tuple[pd.DataFrame, pd.DataFrame]]  # by column, raw and smoothed


def whole_gradient(runs: Sequence[Run], most_points: int) -> Plot:
    """Plots the gradient norm of each step and, if streams' gradients were measured, the noise scale.

    Two lines per run.
    """
    colours = colours_of([run.name for run in runs])
    end = max(run.clock["epoch"].max() for run in runs)
    drawn = {run.name: _figures(run) for run in runs}
    panels = []
    for column, title in _TITLES.items():
        having = {run: figures[column] for run, figures in drawn.items() if column in figures}
        if having:
            lines = [
                one
                for run, (raw, smooth) in having.items()
                for one in pale_and_smooth(raw, smooth, column, run, colours[run], most_points)
            ]
            values = pd.concat([rows[column] for both in having.values() for rows in both])
            panels.append(panel(title, lines, end, **log_axis(values)))
    caption = (
        "Norm of the gradient of each step, before clipping, and its noise scale (the batch size at which noise "
        "equals signal), by epochs of data. Pale: every measurement; line: the same, smoothed. "
        + " ".join(_in_words(run, figures) for run, figures in drawn.items())
    )
    return Plot("The whole gradient", caption, panels, colours, columns=2)


def _figures(run: Run) -> _Figures:
    norms = run.clock[["epoch", "samples"]].assign(norm=_positive(run.clock["gradient_norm"]))
    figures: _Figures = {}
    if norms["norm"].notna().any():
        ends_with_the_last = norms["norm"].bfill().notna()  # none follows where the run went on without finite ones
        figures["norm"] = norms, smoothed(norms, ["norm"])[ends_with_the_last]
    scales = [_with_scale(run.noise), _with_scale(smoothed(run.noise, ["signal", "noise"]))]
    if scales[1]["noise"].notna().any():
        figures["noise"] = scales[0], scales[1]
    return figures


def _with_scale(rows: pd.DataFrame) -> pd.DataFrame:
    # Signal and noise are smoothed before one is divided by the other: outliers would rule a mean of ratios.
    return rows.assign(noise=_positive(rows["noise"]) / _positive(rows["signal"]))


def _positive(values: pd.Series) -> pd.Series:
    """Leaves out values that a logarithmic axis cannot show."""
    return values.where((values > 0) & np.isfinite(values))


def _in_words(run: str, figures: _Figures) -> str:
    texts = {"norm": "the norm", "noise": "the noise scale"}
    words = []
    for column, (_, smooth) in figures.items():
        course = smooth[column].dropna()
        words.append(f"{texts[column]} (smoothed) goes from {course.iloc[0]:.3g} to {course.iloc[-1]:.3g}")
    return f"In {run} {listed(words) if words else 'neither is known'}."
