"""Rows of a ledger on the data clock."""

import numpy as np
import pandas as pd
import pyarrow as pa

from mixer.ledger.append_table import places_by_stream


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
    # There may be very many streams: rows of one table are taken much faster than a table is made for each.
    rows = pd.DataFrame(columns, copy=False)
    rows.columns = rows.columns.astype(object)  # pandas looks up strings of Arrow slowly, for each column of each part
    places = places_by_stream(table)
    rows = rows.take(np.concatenate([*places.values(), np.empty(0, dtype=np.intp)]))
    ends = np.cumsum([len(own) for own in places.values()])
    parts = {name: rows.iloc[end - len(own) : end] for (name, own), end in zip(places.items(), ends, strict=True)}
    for part in parts.values():
        part.index = pd.RangeIndex(len(part))
    return parts
