"""Cosines between the gradients of streams."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go

from mixer.analysis.report.gradient_tables import Cosines
from mixer.analysis.report.plot import GRID, Panel, Plot, label, panel
from mixer.analysis.report.run import Run
from mixer.utils.text import between

# More rows of a heat map are not readable; of more pairs the least and the greatest are what matters.
_MOST_PAIRS, _MOST_STREAMS = 24, 40
_PIXELS_PER_PAIR, _PIXELS_PER_STREAM, _PIXELS_AROUND = 22, 14, 110
# Two colours that are told apart by all, with the ground's own between them where it is near zero.
_COLOUR_SCALE = [[0.0, "#c2410c"], [0.5, "rgba(128,128,128,0.12)"], [1.0, "#1d6fb8"]]


def gradient_cosines(runs: Sequence[Run], _: int) -> Plot:
    """Plots the cosines of pairs over the data clock and, for more than two streams, their means over the run.

    Heat maps per run that measured them. The data clock is already divided into stretches, so no line needs thinning.
    """
    measured = {run.name: run.cosines for run in runs if run.cosines is not None}
    end = max(run.clock["epoch"].max() for run in runs)
    panels = [one for name, cosines in measured.items() for one in _panels(name, cosines, end)]
    few = any(len(_pairs(cosines)) > _MOST_PAIRS for cosines in measured.values())
    caption = (
        "Cosine of the angle between the gradients of two streams in the same step, averaged over stretches of the "
        "run and, for more than two streams, over the whole of it: blue (above 0) where they agree, red (below 0) "
        "where they conflict; noise pulls it towards 0. "
        f"{'Only the pairs with the least and the greatest mean are drawn over the run. ' if few else ''}"
        + " ".join(_in_words(run) for run in runs)
    )
    return Plot("Cosines between streams' gradients", caption, panels, columns=2)


def _panels(run: str, cosines: Cosines, end: float) -> list[Panel]:
    pairs = _pairs(cosines)
    if len(pairs) > _MOST_PAIRS:
        pairs = [*pairs[: _MOST_PAIRS // 2], *pairs[-_MOST_PAIRS // 2 :]]
    panels = [_over_the_run(run, cosines, pairs, end)]
    return [*panels, _of_all(run, cosines)] if len(cosines.names) > 2 else panels


def _pairs(cosines: Cosines) -> list[tuple[int, int]]:
    """Lists the pairs that were measured, the least mean cosine first."""
    firsts, seconds = np.nonzero(np.triu(cosines.counts, 1))
    order = np.argsort(cosines.mean[firsts, seconds], kind="stable")
    return [(int(firsts[place]), int(seconds[place])) for place in order]


def _over_the_run(run: str, cosines: Cosines, pairs: list[tuple[int, int]], end: float) -> Panel:
    firsts, seconds = (list(one) for one in zip(*pairs, strict=True))
    names = [f"{cosines.names[first]} · {cosines.names[second]}" for first, second in pairs]
    trace = _heat_map(
        cosines.stretches[:, firsts, seconds].T,
        cosines.edges,
        [[name] * (len(cosines.edges) - 1) for name in names],
        "epoch %{x:.3f}, %{customdata}: %{z:.3f}",
        _scale_of(cosines),
    )
    drawn = panel(f"{run}: over the run", [trace], end, **_names_axis(names))
    drawn.figure.update_layout(height=_PIXELS_AROUND + _PIXELS_PER_PAIR * max(5, len(pairs)), hovermode="closest")
    return drawn


def _of_all(run: str, cosines: Cosines) -> Panel:
    kept = np.arange(len(cosines.names))
    if len(kept) > _MOST_STREAMS:  # those with the least cosines are the ones to look at
        off_diagonal = np.where(np.eye(len(kept), dtype=bool) | (cosines.counts == 0), np.inf, cosines.mean)
        kept = np.sort(np.argsort(off_diagonal.min(axis=1), kind="stable")[:_MOST_STREAMS])
    names = [cosines.names[place] for place in kept]
    means = np.where(np.eye(len(kept), dtype=bool), np.nan, cosines.mean[np.ix_(kept, kept)])
    pairs = [[f"{row} · {column}" for column in names] for row in names]
    trace = _heat_map(means, np.arange(len(kept)), pairs, "%{customdata}: %{z:.3f}", _scale_of(cosines))
    drawn = panel(f"{run}: mean of the whole run", [trace], 1.0, **_names_axis(names))
    axis = {**_names_axis(names), "autorange": True, "range": None, "title": None, "tickangle": -45}
    drawn.figure.update_layout(
        xaxis=axis, height=_PIXELS_AROUND + 40 + _PIXELS_PER_STREAM * max(12, len(names)), hovermode="closest"
    )
    return drawn


def _scale_of(cosines: Cosines) -> float:
    """Gives the cosine at the ends of the colours: the greatest that is drawn, so that small ones are seen too."""
    known = np.abs(cosines.stretches[np.isfinite(cosines.stretches) & ~np.eye(len(cosines.names), dtype=bool)])
    return max(0.05, float(known.max()))


def _heat_map(values: Any, x: Any, pairs: list[list[str]], hover: str, scale: float) -> go.Heatmap:
    return go.Heatmap(
        z=values.astype(np.float32),
        x=x,
        y=np.arange(len(pairs)),
        customdata=[[label(pair) for pair in row] for row in pairs],
        hovertemplate=f"{hover}<extra></extra>",
        hoverongaps=False,
        colorscale=_COLOUR_SCALE,
        zmin=-scale,
        zmax=scale,
        xgap=1,
        ygap=1,
        colorbar={"thickness": 10, "outlinewidth": 0, "nticks": 5, "tickfont": {"size": 11}},
    )


def _names_axis(names: Sequence[str]) -> dict[str, Any]:
    return {
        "tickvals": list(range(len(names))),
        "ticktext": [label(name) for name in names],
        "tickfont": {"size": 11},
        "autorange": "reversed",
        "gridcolor": GRID,
        "showgrid": False,
    }


def _in_words(run: Run) -> str:
    if run.cosines is None:
        return f"In {run.name} none was measured."
    names, means = run.cosines.names, run.cosines.mean
    known = {f"{names[i]} and {names[j]}": float(means[i, j]) for i, j in _pairs(run.cosines)}
    return f"In {run.name} it is {between(known, '{:.2f}'.format)}, on average over the run."
