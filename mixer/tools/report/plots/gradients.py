"""Norm and noise of gradients, of the mixture and by stream, and cosines between streams."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from mixer.tools.records.gradient_tables import Cosines
from mixer.tools.records.run import Run
from mixer.tools.records.runs import last_epoch, stream_names
from mixer.tools.report.measurements import Course, course_panels, log_axis, smoothed
from mixer.tools.report.plot import Panel, Plot, colours_of, heat_map, label, panel

# More rows of a heat map are not readable; of more pairs the least and the greatest are what matters.
_MOST_PAIRS = 24
_PIXELS_PER_PAIR, _PIXELS_AROUND, _SMALL = 22, 110, {"size": 11}
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
    raw, smooth = (
        part.assign(norm=np.sqrt(_positive(part[signal])), noise=_positive(part[noise]) / _positive(part[signal]))
        for part in (rows, smoothed(rows, [signal, noise]))
    )
    return raw, smooth


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
    """Plots the cosines of pairs over the data clock, a heat map per run that measured them.

    The data clock is already divided into stretches, so no line needs thinning.
    """
    measured = {run.name: run.cosines for run in runs if run.cosines is not None}
    panels = [_of_pairs(name, cosines, last_epoch(runs)) for name, cosines in measured.items()]
    few = any(int(np.triu(cosines.counts > 0, 1).sum()) > _MOST_PAIRS for cosines in measured.values())
    caption = (
        "Blue: the gradients of two streams agree, so that each helps the other. Red: they conflict. Noise pulls "
        "cosines towards 0. Averaged over stretches of the run, the pair with the least mean first."
        f"{' Only the pairs with the least and the greatest mean are drawn.' if few else ''}"
    )
    return Plot("Cosines between streams' gradients", caption, panels, columns=2)


def _of_pairs(run: str, cosines: Cosines, end: float) -> Panel:
    pairs = np.argwhere(np.triu(cosines.counts, 1))
    pairs = pairs[np.argsort(cosines.mean[tuple(pairs.T)], kind="stable")]
    if len(pairs) > _MOST_PAIRS:
        pairs = np.concatenate([pairs[: _MOST_PAIRS // 2], pairs[-_MOST_PAIRS // 2 :]])
    values = cosines.stretches[:, pairs[:, 0], pairs[:, 1]].T
    names = [label(f"{cosines.names[first]} · {cosines.names[second]}") for first, second in pairs.tolist()]
    scale = max(0.05, float(np.nanmax(np.abs(values))))  # the colours end at the greatest, so that small ones are seen
    trace = heat_map(
        values.astype(np.float32),
        "epoch %{x:.3f}, %{customdata}: %{z:.3f}",
        [[name] * len(row) for name, row in zip(names, values, strict=True)],
        x=cosines.edges,
        y=np.arange(len(names)),
        xgap=1,
        ygap=1,
        colorscale=_COLOUR_SCALE,
        zmin=-scale,
        zmax=scale,
        colorbar={"nticks": 5, "tickfont": _SMALL},
    )
    ticks = {"tickvals": list(range(len(names))), "ticktext": names, "tickfont": _SMALL}
    made = panel(f"{run}: over the run", [trace], end, **ticks, autorange="reversed", showgrid=False)
    made.figure.update_layout(height=_PIXELS_AROUND + _PIXELS_PER_PAIR * max(5, len(pairs)), hovermode="closest")
    return made
