"""Rows on the data clock, thinned for drawing."""

from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from mixer.utils.arrays import Int64Array


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
