"""Gradient measurements as table rows and log entries."""

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd

from mixer.measurements.gradients import GradientStatistics

# More pairs than this are summarised by minimum and mean.
_MOST_PAIRS = 6
# Columns of the table, by the statistics that they hold.
_COLUMNS = {
    "counts": "count",
    "shares": "share",
    "squared_norm": "squared_norm",
    "variance": "variance",
    "gram": "gram",
    "gram_error": "gram_error",
}


def rows_of(step: int, names: tuple[str, ...], statistics: GradientStatistics) -> dict[str, Any]:
    """Converts a measurement to rows of the ledger's table `gradients`, one per stream.

    Returns:
        Columns of `[num_streams]` entries; matrices are `[num_streams, num_streams]`.
    """
    numbers = {column: getattr(statistics, name) for name, column in _COLUMNS.items()}
    return {"step": np.full(len(names), step), "stream": list(names), **numbers}


def measurements_in(rows: pd.DataFrame) -> Iterator[tuple[int, list[str], GradientStatistics]]:
    """Converts rows of the ledger's table `gradients` back to measurements.

    Yields:
        Step, names of the streams, and statistics.
    """
    for _, measured in rows.groupby("step"):
        numbers = {name: np.stack(measured[column].to_list()) for name, column in _COLUMNS.items()}
        yield int(measured["step"].iloc[0]), measured["stream"].to_list(), GradientStatistics(**numbers)


def cosines_of(rows: pd.DataFrame) -> pd.DataFrame:
    """Computes the cosines of all pairs of streams.

    Args:
        rows: Rows of the ledger's table `gradients`, in order.

    Returns:
        One row per measurement and pair: step, stream, other (a later stream), cosine.
    """
    cosines = [
        (step, stream, other, cosine)
        for step, names, statistics in measurements_in(rows)
        for (stream, other), cosine in zip(itertools.combinations(names, 2), _pairs(statistics), strict=True)
    ]
    kinds = {"step": np.int64, "stream": object, "other": object, "cosine": np.float64}
    return pd.DataFrame(cosines, columns=list(kinds)).astype(kinds)


def _pairs(statistics: GradientStatistics) -> list[float]:
    """Cosines of all pairs of streams, in the order of `itertools.combinations`."""
    cosines: list[float] = statistics.cosines[np.triu_indices(len(statistics.counts), 1)].tolist()
    return cosines


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
    cosines = dict(zip(itertools.combinations(names, 2), _pairs(statistics), strict=True))
    if len(cosines) <= _MOST_PAIRS:
        entries |= {f"gradient_cosine/{first}/{second}": cosine for (first, second), cosine in cosines.items()}
    elif known := [cosine for cosine in cosines.values() if np.isfinite(cosine)]:
        entries |= {"gradient_cosine/min": min(known), "gradient_cosine/mean": float(np.mean(known))}
    if mixture > 0:
        entries["gradient_noise_scale"] = float(mixture)
    return {name: value for name, value in entries.items() if np.isfinite(value)}
