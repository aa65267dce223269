"""Which scores each metric of continual learning reads: without one of them it is NaN."""

import numpy as np

from mixer.utils.arrays import BoolArray

Shape = tuple[int, ...]


def of_last_row(shape: Shape, last: int) -> BoolArray:
    """Gives the scores on the first k tasks after the k-th.

    Args:
        shape: Shape of R, `[T + 1, T]`.
        last: k.

    Returns:
        bool of that shape: the scores that enter.
    """
    reads = np.zeros(shape, dtype=np.bool_)
    reads[last, :last] = True
    return reads


def of_diagonal(shape: Shape, last: int) -> BoolArray:
    """Gives the score on each of the first k tasks right after it; see `of_last_row`.

    Args:
        shape: Shape of R.
        last: k.

    Returns:
        bool of that shape.
    """
    reads = np.zeros(shape, dtype=np.bool_)
    tasks = np.arange(last)
    reads[tasks + 1, tasks] = True
    return reads


def of_diagonal_and_last_row(shape: Shape, last: int) -> BoolArray:
    """Gives both of the first k - 1 tasks; see `of_last_row`.

    Args:
        shape: Shape of R.
        last: k.

    Returns:
        bool of that shape.
    """
    reads = of_last_row(shape, last) | of_diagonal(shape, last)
    reads[:, last - 1] = False
    return reads


def before_learning(shape: Shape, last: int) -> BoolArray:
    """Gives the scores on tasks 2 to k before the first task, and right before their own; see `of_last_row`.

    Args:
        shape: Shape of R.
        last: k.

    Returns:
        bool of that shape.
    """
    reads = np.zeros(shape, dtype=np.bool_)
    tasks = np.arange(1, last)
    reads[0, tasks] = reads[tasks, tasks] = True
    return reads


def of_all_rows(shape: Shape, last: int) -> BoolArray:
    """Gives the scores on the first k - 1 tasks after each of the first k; see `of_last_row`.

    Args:
        shape: Shape of R.
        last: k.

    Returns:
        bool of that shape.
    """
    reads = np.zeros(shape, dtype=np.bool_)
    reads[1 : last + 1, : last - 1] = True
    return reads


def of_curves(shape: Shape, last: int) -> BoolArray:
    """Gives the learning curves of the first k tasks.

    Args:
        shape: Shape of the curves, `[T, beta + 1]`.
        last: k.

    Returns:
        bool of that shape.
    """
    reads = np.zeros(shape, dtype=np.bool_)
    reads[:last] = True
    return reads
