"""Norm and noise of gradients, of the mixture and by stream, and cosines between streams."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from mixer.report.gradient_tables import Cosines
from mixer.report.measurements import Course, course_panels, log_axis, smoothed
from mixer.report.plot import GRID, Panel, Plot, colours_of, heat_map, label, panel
from mixer.report.run import Run, last_epoch, stream_names
from mixer.utils.arrays import FloatArray

# More rows of a heat map are not readable; of more pairs the least and the greatest are what matters.
_MOST_PAIRS, _MOST_STREAMS = 24, 40
_PIXELS_PER_PAIR, _PIXELS_PER_STREAM, _PIXELS_AROUND = 22, 14, 110
# Two colours that are told apart by all, with the ground's own between them where it is near zero.
_COLOUR_SCALE = [[0.0, "#c2410c"], [0.5, "rgba(128,128,128,0.12)"], [1.0, "#1d6fb8"]]


def whole_gradient(runs: Sequence[Run], most_points: int) -> Plot:
    """Plots the gradient norm of each step and, if streams' gradients were measured, the noise scale.

    Two lines per run.
    """
    colours = colours_of([run.name for run in runs])
    drawn = {run.name: _of_mixture(run) for run in runs}
    panels = []
    for column, title in (("norm", "Norm, before clipping"), ("noise", "Noise scale, samples")):
        courses = {run: own[column] for run, own in drawn.items() if column in own}
        if courses:
            panels.append((title, column, courses))
    caption = (
        "Norm of each step's gradient before clipping: spikes are unstable steps. Noise scale: the batch size at which "
        "noise equals signal; where it lies far above the batch size, larger batches help. Pale: every measurement; "
        "line: smoothed."
    )
    made = course_panels(panels, colours, last_epoch(runs), most_points, log_axis)
    return Plot("The whole gradient", caption, made, colours, columns=2)


def _of_mixture(run: Run) -> dict[str, Course]:
    """Gives the courses by column."""
    norms = run.clock[["epoch", "samples"]].assign(norm=_positive(run.clock["gradient_norm"]))
    courses: dict[str, Course] = {}
    if norms["norm"].notna().any():
        ends_with_the_last = norms["norm"].bfill().notna()  # none follows where the run went on without finite ones
        courses["norm"] = norms, smoothed(norms, ["norm"])[ends_with_the_last]
    scales = course_of(run.noise, "signal", "noise")
    if scales[1]["noise"].notna().any():
        courses["noise"] = scales
    return courses


def course_of(rows: pd.DataFrame, signal: str, noise: str) -> Course:
    """Gives norm and noise scale of measurements, raw and smoothed."""
    # Signal and noise are smoothed before one is divided by the other: outliers would rule a mean of ratios.
    raw, smooth = (_with_scale(part, signal, noise) for part in (rows, smoothed(rows, [signal, noise])))
    return raw, smooth


def _with_scale(rows: pd.DataFrame, signal: str, noise: str) -> pd.DataFrame:
    squared = _positive(rows[signal])
    return rows.assign(norm=np.sqrt(squared), noise=_positive(rows[noise]) / squared)


def _positive(values: pd.Series) -> pd.Series:
    """Leaves out values that a logarithmic axis cannot show."""
    return values.where((values > 0) & np.isfinite(values))


def gradient_norms(runs: Sequence[Run], most_points: int) -> Plot:
    """Plots gradient norm and noise scale of each stream, two panels per run that measured them.

    Two lines per stream.
    """
    drawn = {
        run.name: {name: course_of(rows, "squared_norm", "variance") for name, rows in run.gradients.items()}
        for run in runs
    }
    panels = [
        (f"{run}: {title}", column, courses)
        for run, courses in drawn.items()
        for column, title in (("norm", "norm"), ("noise", "noise scale, samples"))
        if courses
    ]
    caption = (
        "The stream with the largest norm pulls the model most. Beyond its noise scale, more samples of a stream in a "
        "step add little. Pale: every measurement; line: smoothed; left out where noise hides the gradient."
    )
    colours = colours_of(stream_names(runs))
    made = course_panels(panels, colours, last_epoch(runs), most_points, log_axis)
    having = {name for courses in drawn.values() for name, (raw, _) in courses.items() if raw["norm"].notna().any()}
    key = {name: colour for name, colour in colours.items() if name in having}
    return Plot("Gradient norms and noise by stream", caption, made, key, columns=2)


def gradient_cosines(runs: Sequence[Run], _: int) -> Plot:
    """Plots the cosines of pairs over the data clock and, for more than two streams, their means over the run.

    Heat maps per run that measured them. The data clock is already divided into stretches, so no line needs thinning.
    """
    measured = {run.name: run.cosines for run in runs if run.cosines is not None}
    panels = []
    for name, cosines in measured.items():
        panels.append(_over_the_run(name, cosines, last_epoch(runs)))
        if len(cosines.names) > 2:
            panels.append(_of_all(name, cosines))
    few = any(len(_pairs(cosines)) > _MOST_PAIRS for cosines in measured.values())
    caption = (
        "Blue: the gradients of two streams agree, so that each helps the other. Red: they conflict. Noise pulls "
        "cosines towards 0. Left: averaged over stretches of the run; right: over the whole run."
        f"{' Only the pairs with the least and the greatest mean are drawn over the run.' if few else ''}"
    )
    return Plot("Cosines between streams' gradients", caption, panels, columns=2)


def _pairs(cosines: Cosines) -> list[tuple[int, int]]:
    """Lists the pairs that were measured, the least mean cosine first."""
    pairs = np.argwhere(np.triu(cosines.counts, 1))
    order = np.argsort(cosines.mean[tuple(pairs.T)], kind="stable")
    return [(first, second) for first, second in pairs[order].tolist()]


def _over_the_run(run: str, cosines: Cosines, end: float) -> Panel:
    pairs = _pairs(cosines)
    if len(pairs) > _MOST_PAIRS:
        pairs = [*pairs[: _MOST_PAIRS // 2], *pairs[-_MOST_PAIRS // 2 :]]
    firsts, seconds = np.transpose(pairs)
    names = [f"{cosines.names[first]} · {cosines.names[second]}" for first, second in pairs]
    cells = [[name] * (len(cosines.edges) - 1) for name in names]
    hover = "epoch %{x:.3f}, %{customdata}: %{z:.3f}"
    trace = _heat_map(cosines, cosines.stretches[:, firsts, seconds].T, cosines.edges, cells, hover)
    made = panel(f"{run}: over the run", [trace], end, **_names_axis(names))
    made.figure.update_layout(height=_PIXELS_AROUND + _PIXELS_PER_PAIR * max(5, len(pairs)), hovermode="closest")
    return made


def _of_all(run: str, cosines: Cosines) -> Panel:
    kept = np.arange(len(cosines.names))
    if len(kept) > _MOST_STREAMS:  # those with the least cosines are the ones to look at
        off_diagonal = np.where(np.eye(len(kept), dtype=bool) | (cosines.counts == 0), np.inf, cosines.mean)
        kept = np.sort(np.argsort(off_diagonal.min(axis=1), kind="stable")[:_MOST_STREAMS])
    names = [cosines.names[place] for place in kept]
    means = np.where(np.eye(len(kept), dtype=bool), np.nan, cosines.mean[np.ix_(kept, kept)])
    cells = [[f"{row} · {column}" for column in names] for row in names]
    trace = _heat_map(cosines, means, np.arange(len(kept)), cells, "%{customdata}: %{z:.3f}")
    made = panel(f"{run}: mean of the whole run", [trace], 1.0, **_names_axis(names))
    axis = {**_names_axis(names), "autorange": True, "range": None, "title": None, "tickangle": -45}
    height = _PIXELS_AROUND + 40 + _PIXELS_PER_STREAM * max(12, len(names))
    made.figure.update_layout(xaxis=axis, height=height, hovermode="closest")
    return made


def _heat_map(cosines: Cosines, values: FloatArray, x: Any, cells: list[list[str]], hover: str) -> go.Heatmap:
    # The colours end at the greatest cosine that is drawn, so that small ones are seen too.
    drawn = np.abs(cosines.stretches[np.isfinite(cosines.stretches) & ~np.eye(len(cosines.names), dtype=bool)])
    scale = max(0.05, float(drawn.max()))
    return heat_map(
        values.astype(np.float32),
        hover,
        [[label(cell) for cell in row] for row in cells],
        x=x,
        y=np.arange(len(cells)),
        colorscale=_COLOUR_SCALE,
        zmin=-scale,
        zmax=scale,
        xgap=1,
        ygap=1,
        colorbar={"nticks": 5, "tickfont": {"size": 11}},
    )


def _names_axis(names: Sequence[str]) -> dict[str, Any]:
    ticks = {"tickvals": list(range(len(names))), "ticktext": [label(name) for name in names], "tickfont": {"size": 11}}
    return {**ticks, "autorange": "reversed", "gridcolor": GRID, "showgrid": False}
