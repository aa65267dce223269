"""How measurements that are made now and then, and are noisy, are drawn."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from mixer.analysis.report.plot import line
from mixer.analysis.report.thinning import thin

# A smoothed line forgets over this part of the measurements.
_SMOOTHED_PART = 0.1
# Over more of them each power of ten has a tick, and no others are needed.
_MANY_DECADES = 3.0
# Of fewer measurements each has a mark: of a single one there is no line to be seen.
_FEW = 10


def smoothed(rows: pd.DataFrame, columns: Sequence[str]) -> pd.DataFrame:
    """Averages columns over the last measurements, newer ones counting more.

    Args:
        rows: One row a measurement, in order.
        columns: Names of the columns; what is NaN does not count.

    Returns:
        The rows with the averages in place of the columns.
    """
    span = max(1.0, _SMOOTHED_PART * len(rows))
    return rows.assign(**{name: rows[name].ewm(span=span).mean() for name in columns})


def pale_and_smooth(
    raw: pd.DataFrame, smooth: pd.DataFrame, column: str, key: str, colour: str, most_points: int
) -> list[go.Scatter]:
    """Draws each measurement, pale, and what they are on average.

    Args:
        raw: One row a measurement, in order, with `epoch`, `samples` and the column.
        smooth: The same, smoothed.
        column: What is drawn.
        key: Name in the plot's key.
        colour: Its colour.
        most_points: Greatest number of points a line.

    Returns:
        Two lines.
    """
    raw, smooth = (thin(rows, column, most_points) for rows in (raw, smooth))
    mode = "lines+markers" if len(smooth) < _FEW else "lines"
    return [
        line(raw, column, key, colour, f"{key}, this step", opacity=0.3, line={"width": 1}),
        line(smooth, column, key, colour, mode=mode),
    ]


def lines_by_stream(
    figures: Mapping[str, tuple[pd.DataFrame, pd.DataFrame]], column: str, colours: Mapping[str, str], most_points: int
) -> list[go.Scatter]:
    """Draws the measurements of each stream; see `pale_and_smooth`.

    Args:
        figures: By stream, its rows and the same, smoothed.
        column: What is drawn.
        colours: Colours by stream.
        most_points: Greatest number of points a line.

    Returns:
        Two lines a stream.
    """
    return [
        one
        for name, (raw, smooth) in figures.items()
        for one in pale_and_smooth(raw, smooth, column, name, colours[name], most_points)
    ]


def log_axis(values: pd.Series) -> dict[str, Any]:
    """Chooses a logarithmic axis.

    Args:
        values: What is drawn, positive or NaN.

    Returns:
        Properties of the axis.
    """
    least, greatest = (float(np.log10(values.agg(how))) for how in ("min", "max"))
    if np.isnan(least):
        return {"type": "log"}
    margin = max(0.05 * (greatest - least), 0.1)
    axis = {"type": "log", "range": [least - margin, greatest + margin]}
    if greatest - least >= _MANY_DECADES:
        return axis
    # Left to itself, Plotly leaves out the power of ten of what stands between two of them.
    powers = range(math.floor(least - margin), math.ceil(greatest + margin))
    ticks = [step * 10.0**power for power in powers for step in (1, 2, 5)]
    return {**axis, "tickvals": ticks, "ticktext": [f"{tick:.3g}" for tick in ticks]}


def axis_with_zero(values: Sequence[pd.Series]) -> dict[str, Any]:
    """Chooses an axis that has 0 on it, the same for all panels that are compared.

    Args:
        values: What is drawn; what is NaN does not count.

    Returns:
        Properties of the axis.
    """
    least, greatest = min([0.0, *(one.min() for one in values)]), max([0.0, *(one.max() for one in values)])
    margin = 0.05 * (greatest - least or 1.0)
    return {"range": [least - margin, greatest + margin], "zeroline": True, "zerolinecolor": "rgba(128,128,128,0.8)"}
