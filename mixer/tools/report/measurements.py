"""Drawing of occasional, noisy measurements: smoothed lines and axes."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from mixer.tools.report.plot import Panel, line, panel, thin

Course = tuple[pd.DataFrame, pd.DataFrame]  # rows of measurements, raw and smoothed

# Span of a smoothed line, as a part of the measurements.
_SMOOTHED_PART = 0.1
# Over more decades only the powers of ten have ticks.
_MANY_DECADES = 3.0
# Fewer measurements are marked: a single one makes no line.
_FEW = 10


def smoothed(rows: pd.DataFrame, columns: Sequence[str]) -> pd.DataFrame:
    """Smooths columns by an exponential moving average.

    Args:
        rows: One row per measurement, in order.
        columns: Names of the columns. NaN does not count.

    Returns:
        The rows with the averages in place of the columns.
    """
    span = max(1.0, _SMOOTHED_PART * len(rows))
    return rows.assign(**{name: rows[name].ewm(span=span).mean() for name in columns})


def pale_and_smooth(
    course: Course, column: str, key: str, colour: str, most_points: int, name: str = ""
) -> list[go.Scatter]:
    """Draws a pale line of all measurements and a smoothed one.

    Args:
        course: Rows, raw and smoothed, with `epoch`, `samples` and the column.
        column: The column to draw.
        key: Name in the plot's key.
        colour: Colour of both lines.
        most_points: Greatest number of points per line.
        name: Name of the smoothed line under the pointer; the key, if empty.
    """
    raw, smooth = (thin(rows, column, most_points) for rows in course)
    mode = "lines+markers" if len(smooth) < _FEW else "lines"
    return [
        line(raw, column, key, colour, f"{key}, this step", opacity=0.3, line={"width": 1}),
        line(smooth, column, key, colour, name, mode=mode),
    ]


def course_panels(
    panels: Sequence[tuple[str, str, Mapping[str, Course]]],
    colours: Mapping[str, str],
    end: float,
    most_points: int,
    axis: Callable[[Sequence[pd.Series]], dict[str, Any]],
) -> list[Panel]:
    """Draws panels with two lines per key; see `pale_and_smooth`.

    Args:
        panels: Title, column and courses by key of each panel.
        colours: Colours by key.
        end: End of the data clock.
        most_points: Greatest number of points per line.
        axis: Gives the axis of all panels of the same column from their values.
    """
    axes = {
        column: axis(
            [rows[column] for _, of, courses in panels if of == column for both in courses.values() for rows in both]
        )
        for column in {column for _, column, _ in panels}
    }
    return [
        panel(
            title,
            [
                trace
                for key, course in courses.items()
                for trace in pale_and_smooth(course, column, key, colours[key], most_points)
            ],
            end,
            **axes[column],
        )
        for title, column, courses in panels
    ]


def log_axis(values: Sequence[pd.Series]) -> dict[str, Any]:
    """Gives the properties of a logarithmic axis.

    Args:
        values: The values to draw, positive or NaN.
    """
    least, greatest = (float(np.log10(pd.concat(values).agg(how))) for how in ("min", "max"))
    if np.isnan(least):
        return {"type": "log"}
    margin = max(0.05 * (greatest - least), 0.1)
    axis = {"type": "log", "range": [least - margin, greatest + margin]}
    if greatest - least >= _MANY_DECADES:
        return axis
    # Plotly's own ticks between two powers of ten leave out the exponent.
    powers = range(math.floor(least - margin), math.ceil(greatest + margin))
    ticks = [step * 10.0**power for power in powers for step in (1, 2, 5)]
    return {**axis, "tickvals": ticks, "ticktext": [f"{tick:.3g}" for tick in ticks]}
