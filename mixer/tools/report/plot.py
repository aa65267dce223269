"""Plots of the page: their parts and how lines are drawn."""

import html
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from numpy.typing import NDArray

from mixer.utils.arrays import Int64Array

# Told apart on white and on black, neighbours also by the colour-blind.
_COLOURS = (
    *("#3b82c4", "#e07b39", "#2a9d6f", "#c2528b", "#8a6fd1", "#b08a1a"),
    *("#2fa3b5", "#cf4b55", "#77892c", "#5a67a8", "#a8643c", "#7d8590"),
)
GRID = "rgba(128,128,128,0.25)"

LAYOUT = {
    "template": "none",  # the page's style rules: colours of text come from there, on light and on dark
    "margin": {"l": 10, "r": 10, "t": 30, "b": 40},
    "paper_bgcolor": "rgba(0,0,0,0)",
    "plot_bgcolor": "rgba(0,0,0,0)",
    "modebar": {"bgcolor": "rgba(0,0,0,0)", "color": "#888888", "activecolor": "#3b82c4"},
}
_LONGEST_LABEL = 36


@dataclass(frozen=True)
class Panel:
    """One pair of axes.

    Args:
        title: Its title.
        figure: The figure, without its own title and legend.
    """

    title: str
    figure: go.Figure


@dataclass(frozen=True)
class Plot:
    """A section of the page: panels, the key of their colours, and a description in words.

    Args:
        title: The heading.
        caption: What to see in the panels; figures stand in tables.
        panels: The panels.
        colours: The key: colours by name. A name shows and hides the lines of that legend group.
        columns: Greatest number of panels side by side.
    """

    title: str
    caption: str
    panels: list[Panel]
    colours: dict[str, str] = field(default_factory=dict)
    columns: int = 3


def colours_of(names: Sequence[str]) -> dict[str, str]:
    """Gives colours by name, in order."""
    return {name: _COLOURS[place % len(_COLOURS)] for place, name in enumerate(names)}


def label(name: str) -> str:
    """Escapes a name for Plotly, which interprets tags, links and formulas.

    Returns:
        The text, without its middle if it is too long: names differ at their ends.
    """
    half = _LONGEST_LABEL // 2
    short = name if len(name) <= _LONGEST_LABEL else f"{name[:half]}…{name[-half + 1 :]}"
    return html.escape(short).replace("$", "&#36;")


def buckets(epochs: NDArray[Any], most: int) -> Int64Array:
    """Groups steps by stretches of the data clock of equal length.

    Args:
        epochs: `[num_steps]`, ascending.
        most: Greatest number of groups.

    Returns:
        `[num_steps]`: number of the group, from 0; one step per group if there are few enough.
    """
    if len(epochs) <= most:
        return np.arange(len(epochs))
    first, last = float(epochs[0]), float(epochs[-1])
    if first == last:
        return np.zeros(len(epochs), dtype=np.int64)
    return np.minimum(((epochs - first) / (last - first) * most).astype(np.int64), most - 1)


def thin(rows: pd.DataFrame, column: str, most: int) -> pd.DataFrame:
    """Thins a long line, but keeps its first, last, highest and lowest rows.

    Each stretch of the data clock keeps its rows with the least and the greatest value, so that a spike of one step
    stays visible.

    Args:
        rows: One row per step, in order, with `epoch`.
        column: The column to draw; rows where it is NaN are dropped.
        most: Greatest number of rows, at least 4.

    Returns:
        The rows that stay, in order.
    """
    values = rows[column].to_numpy(dtype=np.float64)
    known = np.flatnonzero(~np.isnan(values))
    if len(known) > most:
        bucket = buckets(rows["epoch"].to_numpy()[known], (most - 2) // 2)
        extremes = pd.Series(values[known]).groupby(bucket).agg(["idxmin", "idxmax"]).to_numpy()
        known = known[np.unique(np.append(extremes, [0, len(known) - 1]))]
    return rows if len(known) == len(rows) else rows.iloc[known]


def line(points: pd.DataFrame, column: str, key: str, colour: str, name: str = "", **style: Any) -> go.Scatter:
    """Makes a line over the data clock.

    Args:
        points: One row per point, with `epoch`, `samples` and the column.
        column: The column to draw.
        key: Name in the plot's key.
        colour: Its colour.
        name: Its name under the pointer; the key, if empty.
        **style: Other properties of the line.
    """
    stroke = {"color": colour, "width": 2, **style.pop("line", {})}
    samples = points["samples"].to_numpy()
    return go.Scatter(
        x=points["epoch"].to_numpy(dtype=np.float32),
        y=points[column].to_numpy(dtype=np.float32),
        # The page holds numbers in binary, but for whole ones beyond 32 bits.
        customdata=samples if len(samples) == 0 or samples[-1] < 2**31 else samples.astype(np.float64),
        legendgroup=key,
        name=label(name or key),
        hovertemplate="%{y:.4~g}, after %{customdata:,.0f} samples",
        **{"mode": "lines", **style, "line": stroke},
    )


def panel(title: str, lines: Sequence[go.Scatter | go.Heatmap], last_epoch: float, **y_axis: Any) -> Panel:
    """Draws lines on one pair of axes.

    Args:
        title: Title of the panel.
        lines: The lines.
        last_epoch: End of the data clock, the same in all panels to compare.
        **y_axis: Properties of the vertical axis.
    """
    axis = {"gridcolor": GRID, "zeroline": False, "automargin": True}
    figure = go.Figure(
        list(lines),
        {
            **LAYOUT,
            "height": 300,
            "showlegend": False,
            "hovermode": "x unified",
            "xaxis": {
                **axis,
                "automargin": False,
                "title": {"text": "epoch", "standoff": 8},
                "tickangle": 0,  # turned by itself, as the margins move, they would move again
                "range": [0, (last_epoch or 1.0) * 1.02],
                "unifiedhovertitle": {"text": "epoch %{x:.3f}"},
            },
            "yaxis": {**axis, "nticks": 7, **y_axis},
        },
    )
    return Panel(title, figure)


def heat_map(values: Any, hover: str, names: Sequence[Sequence[str]], **style: Any) -> go.Heatmap:
    """Makes a heat map.

    Args:
        values: `[num_rows, num_columns]`; cells without a value are NaN.
        hover: The text under the pointer, with `%{customdata}` for the name of a cell.
        names: Names of the cells.
        **style: Other properties.
    """
    colorbar = {"thickness": 10, "outlinewidth": 0, **style.pop("colorbar", {})}
    text = {"customdata": names, "hovertemplate": f"{hover}<extra></extra>", "hoverongaps": False}
    return go.Heatmap(z=values, colorbar=colorbar, **text, **style)
