"""A curve of a few hundred points, however long the run, and its picture in one line of text."""

import numpy as np

from mixer.utils.arrays import FloatArray

_MOST_POINTS = 512


_BLOCKS = "▁▂▃▄▅▆▇█"


class Curve:
    """Means of equally many values each; two are made one whenever there are too many."""

    def __init__(self) -> None:
        self._points: FloatArray = np.empty(0)
        self._stride = 1
        self._rest: FloatArray = np.empty(0)  # values that make no whole point yet

    def extend(self, values: FloatArray) -> None:
        """Adds values; those that are not finite are left out.

        Args:
            values: `[num_values]`, in their order.
        """
        given = np.concatenate([self._rest, values[np.isfinite(values)]])
        whole = len(given) // self._stride * self._stride
        means = given[:whole].reshape(-1, self._stride).mean(axis=1)
        self._points, self._rest = np.concatenate([self._points, means]), given[whole:]
        while len(self._points) > _MOST_POINTS:
            even = len(self._points) // 2 * 2
            last = self._points[even:]
            self._points = self._points[:even].reshape(-1, 2).mean(axis=1)
            self._rest = np.concatenate([np.repeat(last, self._stride), self._rest])
            self._stride *= 2

    @property
    def points(self) -> FloatArray:
        """`[num_points]`: the means, and that of the values that make no whole point yet."""
        return np.append(self._points, self._rest.mean()) if len(self._rest) else self._points


def sparkline(points: FloatArray, width: int) -> str:
    """Draws a curve with blocks of eight heights, from its least to its greatest value.

    Args:
        points: `[num_points]`: the curve.
        width: Greatest number of characters.

    Returns:
        The line; a flat curve is drawn low.

    Example:
        >>> sparkline(np.array([0.0, 1.0, 2.0, 7.0]), 10)
        '▁▂▃█'
    """
    if not len(points) or width < 1:
        return ""
    pieces = np.array_split(points, min(width, len(points)))
    means = np.array([piece.mean() for piece in pieces])
    span = means.max() - means.min()
    heights = np.zeros(len(means)) if span <= 0 else (means - means.min()) / span * (len(_BLOCKS) - 1)
    return "".join(_BLOCKS[round(height)] for height in heights)
