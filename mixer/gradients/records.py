"""Gradient measurements as table rows and log entries."""

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd

from mixer.policies.gradient_statistics import GradientStatistics

# More pairs than this are summarised by minimum and mean.
_MOST_PAIRS = 6


def rows_of(step: int, names: tuple[str, ...], statistics: GradientStatistics) -> dict[str, Any]:
    """Converts a measurement to rows of the ledger's table `gradients`, one per stream.

    Returns:
        Columns of `[num_streams]` entries; matrices are `[num_streams, num_streams]`.
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
    """Converts rows of the ledger's table `gradients` back to measurements.

    Yields:
        Step, names of the streams, and statistics.
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
    """Computes the cosines of all pairs of streams.

    Args:
        rows: Rows of the ledger's table `gradients`, in order.

    Returns:
        One row per measurement and pair: step, stream, other (a later stream), cosine.
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


def gradient_entries(names: Sequence[str], statistics: GradientStatistics) -> dict[str, float]:
    """Converts a measurement to log entries, without values that are unknown or not finite.

    Returns:
        `gradient_norm/NAME` (if not hidden by noise), `gradient_noise/NAME` (noise scale, in samples),
        `gradient_cosine/A/B` (`/min` and `/mean` for more than six pairs) and `gradient_noise_scale` (of the mixture,
        in samples).
    """
    # Noise may make a squared norm negative: then the gradient is below the noise, and its noise scale unknown.
    norms = np.sqrt(np.where(statistics.squared_norm > 0.0, statistics.squared_norm, np.nan))
    signal, noise = statistics.noise
    with np.errstate(divide="ignore", invalid="ignore"):
        scales = statistics.variance / statistics.squared_norm
        mixture = np.divide(noise, signal)
    entries = {f"gradient_norm/{name}": float(norm) for name, norm in zip(names, norms, strict=True)}
    entries |= {f"gradient_noise/{name}": float(scale) for name, scale in zip(names, scales, strict=True) if scale > 0}
    entries |= _cosines(names, statistics)
    if mixture > 0:
        entries["gradient_noise_scale"] = float(mixture)
    return {name: value for name, value in entries.items() if np.isfinite(value)}


def _cosines(names: Sequence[str], statistics: GradientStatistics) -> dict[str, float]:
    cosines = statistics.cosines[np.triu_indices(len(names), 1)]
    if len(cosines) <= _MOST_PAIRS:
        pairs = zip(itertools.combinations(names, 2), cosines, strict=True)
        return {f"gradient_cosine/{one}/{other}": float(cosine) for (one, other), cosine in pairs}
    known = cosines[np.isfinite(cosines)]
    if not len(known):
        return {}
    return {"gradient_cosine/min": float(known.min()), "gradient_cosine/mean": float(known.mean())}
