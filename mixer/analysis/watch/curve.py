"""A curve of bounded size for a run of any length, and its sparkline."""

import numpy as np

from mixer.utils.arrays import FloatArray

_MOST_POINTS = 512
_BLOCKS = "▁▂▃▄▅▆▇█"


class Curve:
    """A series of means over equally many values; neighbours are merged whenever there are too many points."""

    def __init__(self) -> None:
        self._points: FloatArray = np.empty(0)
        self._stride = 1
        self._rest: FloatArray = np.empty(0)  # values of the point that is not complete yet

    def extend(self, values: FloatArray) -> None:
        """Appends values, `[num_values]`; non-finite ones are left out."""
        pending = np.concatenate([self._rest, values[np.isfinite(values)]])
        whole = len(pending) // self._stride * self._stride
        means = pending[:whole].reshape(-1, self._stride).mean(axis=1)
        self._points, self._rest = np.concatenate([self._points, means]), pending[whole:]
        while len(self._points) > _MOST_POINTS:
            even = len(self._points) // 2 * 2
            last = self._points[even:]
            self._points = self._points[:even].reshape(-1, 2).mean(axis=1)
            self._rest = np.concatenate([np.repeat(last, self._stride), self._rest])
            self._stride *= 2

    @property
    def points(self) -> FloatArray:
        """The means, `[num_points]`; the last one may be over fewer values."""
        return np.append(self._points, self._rest.mean()) if len(self._rest) else self._points


def sparkline(points: FloatArray, width: int) -> str:
    """Draws a curve, `[num_points]`, in at most `width` blocks of eight heights, from its minimum to its maximum.

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
