"""Fewer points where a run has more updates than a screen has pixels."""

from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

Int64Array = NDArray[np.int64]


def buckets(epochs: NDArray[Any], most: int) -> Int64Array:
    """Groups updates by stretches of the data clock, all of the same length.

    Args:
        epochs: `[num_updates]`: where each stands, ascending.
        most: Greatest number of groups.

    Returns:
        `[num_updates]`: number of the group, from 0; one update a group where there are few enough.
    """
    if len(epochs) <= most:
        return np.arange(len(epochs))
    first, last = float(epochs[0]), float(epochs[-1])
    if first == last:
        return np.zeros(len(epochs), dtype=np.int64)
    return np.minimum(((epochs - first) / (last - first) * most).astype(np.int64), most - 1)


def thin(rows: pd.DataFrame, column: str, most: int) -> pd.DataFrame:
    """Leaves rows out of a long line, never its first, its last, its highest or its lowest.

    Of every stretch of the data clock the rows with the least and the greatest value stay, so that a spike of one
    update is still seen.

    Args:
        rows: One row an update, in order, with `epoch`.
        column: The values that are drawn; rows without one are left out.
        most: Greatest number of rows, at least 4.

    Returns:
        The rows that stay, in order.
    """
    rows = rows[rows[column].notna()]
    if len(rows) <= most:
        return rows
    bucket = buckets(rows["epoch"].to_numpy(), (most - 2) // 2)
    order = np.lexsort((rows[column].to_numpy(), bucket))
    borders = np.flatnonzero(np.diff(bucket[order]))
    least, greatest = np.append(0, borders + 1), np.append(borders, len(rows) - 1)
    kept = np.unique(np.concatenate([order[least], order[greatest], [0, len(rows) - 1]]))
    return rows.iloc[kept]
