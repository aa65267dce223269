"""What replay buffers held, step by step."""

import numpy as np
import pandas as pd

from mixer.analysis.report.thinning import buckets


def held(rows: pd.DataFrame, column: str, most: int) -> pd.DataFrame:
    """Lays out what a buffer held.

    Args:
        rows: One row per log entry and what is told apart: step, epoch, samples, entries, and the column.
        column: What is told apart, such as `"source"`.
        most: Greatest number of log entries: the last of every stretch of the data clock stays.

    Returns:
        One row a log entry (the index: step, epoch, samples), a column for each that is told apart, in the order in
        which they came: how many entries there were.
    """
    table = rows.pivot(index=["step", "epoch", "samples"], columns=column, values="entries").fillna(0)
    bucket = buckets(table.index.get_level_values("epoch").to_numpy(dtype=np.float64), most)
    last = np.append(np.flatnonzero(np.diff(bucket)), len(bucket) - 1)
    return table.iloc[last][list(dict.fromkeys(rows[column]))]
