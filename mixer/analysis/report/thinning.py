"""Fewer points where a run has more steps than a screen has pixels."""

from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from mixer.utils.arrays import Int64Array


def buckets(epochs: NDArray[Any], most: int) -> Int64Array:
    """Groups steps by stretches of the data clock, all of the same length.

    Args:
        epochs: `[num_steps]`: where each stands, ascending.
        most: Greatest number of groups.

    Returns:
        `[num_steps]`: number of the group, from 0; one step a group where there are few enough.
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
        rows: One row a step, in order, with `epoch` and `samples`.
        columns: Names of the columns.
        most: Greatest number of stretches.

    Returns:
        One row a stretch: epoch and samples at its end, and the means.
    """
    groups = rows.groupby(buckets(rows["epoch"].to_numpy(), most))
    return groups[["epoch", "samples"]].last().assign(**{name: groups[name].mean() for name in columns})


def thin(rows: pd.DataFrame, column: str, most: int) -> pd.DataFrame:
    """Leaves rows out of a long line, never its first, its last, its highest or its lowest.

    Of every stretch of the data clock the rows with the least and the greatest value stay, so that a spike of one
    step is still seen.

    Args:
        rows: One row a step, in order, with `epoch`.
        column: The values that are drawn; rows without one are left out.
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
    """Finds where the first of the least and of the greatest values of each bucket are; buckets ascend."""
    starts = np.append(0, np.flatnonzero(np.diff(bucket)) + 1)
    group = np.repeat(np.arange(len(starts)), np.diff(starts, append=len(values)))
    found = []
    for extreme in (np.minimum, np.maximum):
        places = np.flatnonzero(values == extreme.reduceat(values, starts)[group])
        found.append(places[np.unique(group[places], return_index=True)[1]])
    return found
