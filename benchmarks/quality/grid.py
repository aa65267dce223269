"""Fixed mixtures to compare with: the same for everyone, spread over the simplex, with streams that get nothing."""

from collections.abc import Iterator, Sequence

import numpy as np

from mixer.utils.arrays import FloatArray, Int64Array

_TWO = (0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4)  # shares of one of two streams
_HALF = 0.5
_SPREAD = 40  # points to choose from


def grid(num_samples: Int64Array, importance: Sequence[float], count: int) -> FloatArray:
    """Lists fixed mixtures.

    In this order: the uniform one; the objective's own and half of it, where its targets are streams; each stream left
    out; each stream with half of all samples; by size and by its root; then points spread over the simplex, with
    shares near 0 among them: those of the additive recurrence by the roots of `x^(K+1) = x + 1` (Roberts 2018), brought
    to the simplex by `(log u)²`. For two streams 15 shares from 0.02 to 0.98.

    Args:
        num_samples: int64 `[num_streams]`: sizes of the streams.
        importance: `[num_streams]`: the objective's importance of the streams, 0 for one that is no target.
        count: How many for three streams and more.

    Returns:
        `[num_mixtures, num_streams]` on the simplex.
    """
    if len(num_samples) == 2:
        first = np.array([*_TWO, _HALF, *(1.0 - share for share in reversed(_TWO))])
        return np.stack([first, 1.0 - first], axis=1)
    found: dict[tuple[float, ...], FloatArray] = {}
    for point in _points(num_samples, np.asarray(importance)):
        found.setdefault(tuple((point / point.sum()).round(4)), point / point.sum())
        if len(found) == count:
            break
    return np.array(list(found.values()))


def few(aim: Sequence[float], count: int) -> FloatArray:
    """Lists a handful of fixed mixtures, where there is no time for a grid.

    Equal steps on the way from the uniform mixture to the aim; if they are the same, half for one stream after another.

    Args:
        aim: `[num_streams]`: weights of the mixture that has nothing but what the objective is about.
        count: How many, at most.

    Returns:
        `[num_mixtures, num_streams]` on the simplex.
    """
    num_streams, end = len(aim), np.asarray(aim) / np.sum(aim)
    even, one = np.full(num_streams, 1.0 / num_streams), np.eye(num_streams)
    if np.allclose(end, even):
        return (_HALF * one + _HALF * (1.0 - one) / (num_streams - 1))[:count]
    ways = np.arange(1, count + 1)[:, None] / (count + 1)
    return (1.0 - ways) * even + ways * end


def _points(num_samples: Int64Array, importance: FloatArray) -> Iterator[FloatArray]:
    num_streams = len(num_samples)
    even, one = np.full(num_streams, 1.0 / num_streams), np.eye(num_streams)
    yield even
    if importance.sum() > 0.0:
        yield importance
        yield _HALF * importance / importance.sum() + _HALF * even
    yield from 1.0 - one
    yield from _HALF * one + _HALF * (1.0 - one) / (num_streams - 1)
    yield from (num_samples / num_samples.sum(), np.sqrt(num_samples))
    yield from np.square(np.log(_recurrence(_SPREAD, num_streams)))


def _recurrence(count: int, dimensions: int) -> FloatArray:
    root = 2.0
    for _ in range(60):
        root = (1.0 + root) ** (1.0 / (dimensions + 1))
    steps = root ** -np.arange(1.0, dimensions + 1)
    values: FloatArray = (0.5 + np.outer(np.arange(1, count + 1), steps)) % 1.0
    return np.clip(values, 1e-6, 1.0 - 1e-6)
