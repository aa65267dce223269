"""Rows of a ledger's tables, laid over the data clock."""

from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import NDArray


def on_clock(rows: pd.DataFrame, clock: pd.DataFrame) -> pd.DataFrame:
    """Adds where the run stood.

    Args:
        rows: One row a record, with `step`.
        clock: One row a step, ascending, with `step`, `epoch` and `samples`.

    Returns:
        The rows with `epoch` and `samples`; those are left out whose place a running run has not written yet.
    """
    places, is_known = _places(rows["step"].to_numpy(), clock["step"].to_numpy())
    if not is_known.all():
        rows, places = rows[is_known], places[is_known]
    return rows.assign(**{column: clock[column].to_numpy()[places] for column in ("epoch", "samples")})


def by_stream(table: pa.Table, clock: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Takes a table apart by its column `stream`.

    Args:
        table: One row a record, with `step` and `stream`, ascending by step.
        clock: See `on_clock`.

    Returns:
        By name, in the order in which they come first: the rows without that column, with `epoch` and `samples`.
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
    """`[num_steps]` each: the row of the clock, and whether there is one."""
    places = np.searchsorted(of, steps)
    is_known = places < len(of)
    is_known[is_known] = of[places[is_known]] == steps[is_known]
    return places, is_known
