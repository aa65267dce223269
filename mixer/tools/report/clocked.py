"""Rows of a ledger on the data clock, thinned for drawing."""

from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import NDArray

from mixer.ledger.append_table import places_by_stream
from mixer.utils.arrays import Int64Array


def on_clock(rows: pd.DataFrame, clock: pd.DataFrame) -> pd.DataFrame:
    """Adds the position on the data clock.

    Args:
        rows: One row per record, with `step`.
        clock: One row per step, ascending, with `step`, `epoch` and `samples`.

    Returns:
        The rows with `epoch` and `samples`, without rows of steps that a running run has not recorded in the clock yet.
    """
    steps, known = rows["step"].to_numpy(), clock["step"].to_numpy()
    places = np.searchsorted(known, steps)
    is_known = places < len(known)
    is_known[is_known] = known[places[is_known]] == steps[is_known]
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
    placed = on_clock(pd.DataFrame({"step": table.column("step").to_numpy()}), clock)
    if len(placed) < table.num_rows:
        table = table.take(placed.index.to_numpy())
    columns = {name: table.column(name).to_pandas().to_numpy() for name in table.column_names if name != "stream"}
    columns |= {name: placed[name].to_numpy() for name in ("epoch", "samples")}
    return {
        name: pd.DataFrame({key: values[places] for key, values in columns.items()}, copy=False)  # there may be many
        for name, places in places_by_stream(table).items()
    }


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
