"""Measurements of the streams' gradients as rows of a table, and back."""

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd

from mixer.policies.gradient_statistics import GradientStatistics


def rows_of(step: int, names: tuple[str, ...], statistics: GradientStatistics) -> dict[str, Any]:
    """Turns a measurement into rows, one a stream.

    Args:
        step: Number of the step.
        names: Names of the streams.
        statistics: What was measured.

    Returns:
        `[num_streams]` each, the matrices `[num_streams, num_streams]`: the columns of the ledger's `gradients`.
    """
    return {
        "step": np.full(len(names), step),
        "stream": list(names),
        "count": statistics.counts,
        "share": statistics.shares,
        "squared_norm": statistics.squared_norm,
        "variance": statistics.variance,
        "gram": statistics.gram,
        "gram_error": statistics.gram_error,
    }


def measurements_in(rows: pd.DataFrame) -> Iterator[tuple[int, list[str], GradientStatistics]]:
    """Turns rows back into measurements.

    Args:
        rows: The ledger's `gradients`, in order.

    Yields:
        The step, the names of the streams and what was measured.
    """
    steps = rows["step"].to_numpy()
    columns = {name: rows[name].to_numpy() for name in rows.columns}
    starts, ends = np.flatnonzero(np.diff(steps, prepend=-1)), np.flatnonzero(np.diff(steps, append=-1)) + 1
    for start, end in zip(starts, ends, strict=True):
        one = {name: column[start:end] for name, column in columns.items()}
        statistics = GradientStatistics(
            gram=np.stack(list(one["gram"])),
            variance=one["variance"],
            squared_norm=one["squared_norm"],
            counts=one["count"],
            shares=one["share"],
            gram_error=np.stack(list(one["gram_error"])),
        )
        yield int(one["step"][0]), one["stream"].tolist(), statistics


def cosines_of(rows: pd.DataFrame) -> pd.DataFrame:
    """Gives the cosines of all pairs of streams.

    Args:
        rows: The ledger's `gradients`, in order.

    Returns:
        One row per measurement and pair: step, stream, other (a later one), cosine.
    """
    steps, streams, others, cosines = [], [], [], []
    for step, names, statistics in measurements_in(rows):
        pairs = list(itertools.combinations(names, 2))
        steps.append(np.full(len(pairs), step))
        streams += [stream for stream, _ in pairs]
        others += [other for _, other in pairs]
        cosines.append(statistics.cosines[np.triu_indices(len(names), 1)])
    return pd.DataFrame(
        {
            "step": np.concatenate([np.empty(0, np.int64), *steps]),
            "stream": np.array(streams, dtype=object),
            "other": np.array(others, dtype=object),
            "cosine": np.concatenate([np.empty(0), *cosines]),
        }
    )
