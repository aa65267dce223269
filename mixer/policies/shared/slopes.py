"""Slopes of losses."""

import numpy as np

from mixer.utils.arrays import FloatArray

LARGEST = 1e100  # sums and squares of it are finite


def bounded(losses: FloatArray) -> FloatArray:
    """Clips losses to finite numbers, with NaN for those that are not finite."""
    return np.where(np.isfinite(losses), np.clip(losses, -LARGEST, LARGEST), np.nan)


def slopes_of(positions: FloatArray, rows: FloatArray) -> FloatArray:
    """Fits a straight line to the values of each stream, by least squares.

    Args:
        positions: `[num_rows]`: position of each row, such as the step.
        rows: `[num_rows, num_streams]`: values, NaN for gaps.

    Returns:
        `[num_streams]`: change per unit of position; NaN for a stream with less than two values at different positions.
    """
    known = np.isfinite(rows)
    counts = np.maximum(known.sum(axis=0), 1)
    where = np.where(known, positions[:, None], 0.0)
    values = np.where(known, rows, 0.0)
    # Deviations from the mean: raw sums of squares would lose the digits of a small slope.
    where = np.where(known, where - where.sum(axis=0) / counts, 0.0)
    values = np.where(known, values - (values / counts).sum(axis=0), 0.0)
    spread = (where**2).sum(axis=0)
    slopes: FloatArray = np.divide(
        (where * values).sum(axis=0), spread, out=np.full(rows.shape[1], np.nan), where=spread > 0
    )
    return slopes
