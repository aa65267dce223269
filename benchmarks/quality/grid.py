"""Fixed mixtures to compare with: the same for everyone, spread over the simplex."""

import numpy as np

from mixer.utils.arrays import FloatArray, Int64Array

_EIGHTHS = 8
_NUM_SPREAD = 15
_POWERS = (2.0, 0.7, 0.5, -0.5, -1.0)  # of the size: temperatures, and beyond uniform to where small streams have more
_LEAST = 0.25  # least share, in multiples of an equal one


def grid(num_samples: Int64Array) -> FloatArray:
    """Lists fixed mixtures.

    For three streams all 21 whose weights are positive multiples of 1/8. For another number 20: five by size, `w ∝ n^p`
    with p of 2, 0.7, 0.5, -0.5 and -1, and 15 spread over the simplex: points of the additive recurrence by the roots
    of `x^(K+1) = x + 1` (Roberts 2018), each brought to the simplex by `-log u`, whose shares are uniform there, and
    lifted to a quarter of an equal share.

    Args:
        num_samples: int64 `[num_streams]`: sizes of the streams.

    Returns:
        `[num_mixtures, num_streams]` on the simplex.
    """
    num_streams = len(num_samples)
    if num_streams == 3:
        eighths = [(i, j, _EIGHTHS - i - j) for i in range(1, _EIGHTHS - 1) for j in range(1, _EIGHTHS - i)]
        return np.array(eighths) / _EIGHTHS
    sizes = num_samples / num_samples.max()
    points = [sizes**power for power in _POWERS]
    points += list(-np.log(_recurrence(_NUM_SPREAD, num_streams)))
    least = _LEAST / num_streams
    return np.array([least + (1.0 - least * num_streams) * point / point.sum() for point in points])


def _recurrence(count: int, dimensions: int) -> FloatArray:
    root = 2.0
    for _ in range(60):
        root = (1.0 + root) ** (1.0 / (dimensions + 1))
    steps = root ** -np.arange(1.0, dimensions + 1)
    values: FloatArray = (0.5 + np.outer(np.arange(1, count + 1), steps)) % 1.0
    return np.clip(values, 1e-6, 1.0 - 1e-6)
