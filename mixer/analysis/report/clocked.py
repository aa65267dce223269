"""Rows of a ledger on the data clock, thinned for drawing."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import pyarrow as pa
from numpy.typing import NDArray

from mixer.analysis.report.plot import line
from mixer.utils.arrays import Int64Array
from mixer.utils.text import between, first_of


def on_clock(rows: pd.DataFrame, clock: pd.DataFrame) -> pd.DataFrame:
    """Adds the position on the data clock.

    Args:
        rows: One row per record, with `step`.
        clock: One row per step, ascending, with `step`, `epoch` and `samples`.

    Returns:
        The rows with `epoch` and `samples`, without rows of steps that a running run has not recorded in the clock yet.
    """
    places, is_known = _places(rows["step"].to_numpy(), clock["step"].to_numpy())
    if not is_known.all():
        rows, places = rows[is_known], places[is_known]
    return rows.assign(**{column: clock[column].to_numpy()[places] for column in ("epoch", "samples")})


def by_stream(table: pa.Table, clock: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Splits a table by its column `stream`.

    Args:
        table: One row per record, with `step` and `stream`, ascending by step.
        clock: See `on_clock`.

    Returns:
        Rows by stream, in order of first appearance, without that column and with `epoch` and `samples`.
    """
    names = table.column("stream").dictionary_encode().combine_chunks()
    codes = names.indices.to_numpy(zero_copy_only=False)
    order = np.argsort(codes, kind="stable")  # sorting once is faster than looking for each of many streams
    ends = np.cumsum(np.bincount(codes, minlength=len(names.dictionary)))
    columns = {
        name: table.column(name).to_pandas().to_numpy()[order] for name in table.column_names if name != "stream"
    }
    parts = {}
    for name, start, end in zip(names.dictionary.to_pylist(), [0, *ends], ends, strict=False):
        # Not copied: there may be many.
        part = on_clock(pd.DataFrame({key: values[start:end] for key, values in columns.items()}, copy=False), clock)
        if len(part):
            parts[name] = part
    return parts


def _places(steps: NDArray[Any], of: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Gives the row of the clock for each step, and whether there is one: `[num_steps]` each."""
    places = np.searchsorted(of, steps)
    is_known = places < len(of)
    is_known[is_known] = of[places[is_known]] == steps[is_known]
    return places, is_known


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


def averaged(rows: pd.DataFrame, columns: list[str], most: int) -> pd.DataFrame:
    """Averages columns over stretches of the data clock.

    Args:
        rows: One row per step, in order, with `epoch` and `samples`.
        columns: Names of the columns.
        most: Greatest number of stretches.

    Returns:
        One row per stretch: epoch and samples at its end, and the means.
    """
    groups = rows.groupby(buckets(rows["epoch"].to_numpy(), most))
    return groups[["epoch", "samples"]].last().assign(**{name: groups[name].mean() for name in columns})


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
        known = known[np.unique(np.concatenate([*_extremes(values[known], bucket), [0, len(known) - 1]]))]
    return rows if len(known) == len(rows) else rows.iloc[known]


def _extremes(values: NDArray[Any], bucket: Int64Array) -> list[Int64Array]:
    """Finds the first of the least and of the greatest values of each bucket; buckets ascend."""
    starts = np.append(0, np.flatnonzero(np.diff(bucket)) + 1)
    group = np.repeat(np.arange(len(starts)), np.diff(starts, append=len(values)))
    found = []
    for extreme in (np.minimum, np.maximum):
        places = np.flatnonzero(values == extreme.reduceat(values, starts)[group])
        found.append(places[np.unique(group[places], return_index=True)[1]])
    return found


def not_finite_since(rows: pd.DataFrame) -> int | None:
    """Gives the step of the first loss after the last finite one.

    Args:
        rows: Steps of a stream (those without items have no loss), or evaluations.

    Returns:
        The step; `None` if the last loss is finite, or there is none.
    """
    there = rows[rows["items"] > 0] if "items" in rows else rows
    finite = np.isfinite(there["loss"].to_numpy(dtype=np.float64))
    if not len(finite) or finite[-1]:
        return None
    return int(there["step"].iloc[int(finite.nonzero()[0].max(initial=-1)) + 1])


def last_in_words(rows_by_name: Mapping[str, pd.DataFrame], values: Mapping[str, pd.Series], unit: str) -> str:
    """Describes the last losses.

    Args:
        rows_by_name: Steps or evaluations by name; see `not_finite_since`.
        values: Losses by name, smoothed or not.
        unit: Name of a row, as in "step 120".

    Returns:
        As in "between 1.200 (a) and 1.400 (b), not finite since step 120 (c)"; empty without any loss.
    """
    since = {name: not_finite_since(rows) for name, rows in rows_by_name.items()}
    last = {
        name: float(course.dropna().iloc[-1])
        for name, course in values.items()
        if since[name] is None and course.notna().any()
    }
    bad = [f"not finite since {unit} {step:,} ({name})" for name, step in since.items() if step is not None]
    return ", ".join([*([between(last, "{:.3f}".format)] if last else []), *first_of(bad)])


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
    raw: pd.DataFrame, smooth: pd.DataFrame, column: str, key: str, colour: str, most_points: int
) -> list[go.Scatter]:
    """Draws a pale line of all measurements and a smoothed one.

    Args:
        raw: One row per measurement, in order, with `epoch`, `samples` and the column.
        smooth: The same rows, smoothed.
        column: The column to draw.
        key: Name in the plot's key.
        colour: Colour of both lines.
        most_points: Greatest number of points per line.
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
        figures: Rows by stream, raw and smoothed.
        column: The column to draw.
        colours: Colours by stream.
        most_points: Greatest number of points per line.

    Returns:
        Two lines per stream.
    """
    return [
        one
        for name, (raw, smooth) in figures.items()
        for one in pale_and_smooth(raw, smooth, column, name, colours[name], most_points)
    ]


def log_axis(values: pd.Series) -> dict[str, Any]:
    """Gives the properties of a logarithmic axis.

    Args:
        values: The values to draw, positive or NaN.
    """
    least, greatest = (float(np.log10(values.agg(how))) for how in ("min", "max"))
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


def axis_with_zero(values: Sequence[pd.Series]) -> dict[str, Any]:
    """Gives the properties of an axis that includes 0, the same for all panels to compare.

    Args:
        values: The values to draw. NaN does not count.
    """
    least, greatest = min([0.0, *(one.min() for one in values)]), max([0.0, *(one.max() for one in values)])
    margin = 0.05 * (greatest - least or 1.0)
    return {"range": [least - margin, greatest + margin], "zeroline": True, "zerolinecolor": "rgba(128,128,128,0.8)"}


def held(rows: pd.DataFrame, column: str, most: int) -> pd.DataFrame:
    """Tabulates the entries of a replay buffer.

    Args:
        rows: One row per log entry and group: step, epoch, samples, entries, and the column.
        column: The column of the groups, such as `"source"`.
        most: Greatest number of log entries: each stretch of the data clock keeps its last.

    Returns:
        Numbers of entries, one row per log entry (the index: step, epoch, samples) and one column per group, in order
        of first appearance.
    """
    table = rows.pivot(index=["step", "epoch", "samples"], columns=column, values="entries").fillna(0)
    bucket = buckets(table.index.get_level_values("epoch").to_numpy(dtype=np.float64), most)
    last = np.append(np.flatnonzero(np.diff(bucket)), len(bucket) - 1)
    return table.iloc[last][list(dict.fromkeys(rows[column]))]
