"""Published formulas of the metrics of continual learning, and the scores that each one reads.

R `[T + 1, T]` belongs to a `ScoreMatrix`: R[i, j] is the score on task j after training on task i, both counted from 1.
b_j = R[0, j] is the score before the first task. Higher scores are better: negate losses. `after=k` computes the metric
of the first k tasks and ignores all rows and columns beyond; `None` takes all T. A metric is NaN if a score that it
reads is missing, and a difference between tasks is NaN for a single task.

The `of_...` functions and `before_learning` say which cells of the table a metric reads, given the row and column of
each cell and k.
"""

from typing import Any

import numpy as np

from mixer.utils.arrays import FloatArray


def average_accuracy(scores: FloatArray, after: int | None = None) -> float:
    """ACC = (1/T) Σ_j R[T, j]: the mean score at the end (Lopez-Paz and Ranzato 2017, equation 2)."""
    return _mean(_first_tasks(scores, after)[-1])


def learning_accuracy(scores: FloatArray, after: int | None = None) -> float:
    """LA = (1/T) Σ_j R[j, j]: the mean score on a task right after learning it (Riemer et al. 2019)."""
    return _mean(np.diagonal(_first_tasks(scores, after)[1:]))


def backward_transfer(scores: FloatArray, after: int | None = None) -> float:
    """BWT = 1/(T-1) Σ_{j<T} (R[T, j] - R[j, j]): the effect of later tasks (Lopez-Paz and Ranzato 2017, equation 3)."""
    first = _first_tasks(scores, after)
    return _mean((first[-1] - np.diagonal(first[1:]))[:-1])


def forward_transfer(scores: FloatArray, after: int | None = None) -> float:
    """FWT = 1/(T-1) Σ_{j≥2} (R[j-1, j] - b_j): the effect of earlier tasks (Lopez-Paz and Ranzato 2017, equation 4)."""
    first = _first_tasks(scores, after)
    return _mean((np.diagonal(first) - first[0])[1:])  # row j - 1, since row 0 comes before the first task


def forgetting(scores: FloatArray, after: int | None = None) -> float:
    """FGT = 1/(T-1) Σ_{j<T} (max_{1≤l<T} R[l, j] - R[T, j]): drop from the best (Chaudhry et al. 2018, equation 3).

    The maximum leaves out row 0 and the last row, so a task that is best at the end contributes a negative value.
    Positive values mean that tasks got worse.
    """
    first = _first_tasks(scores, after)[1:, :-1]
    return _mean(first[:-1].max(axis=0, initial=-np.inf) - first[-1])


def forgetting_first_minus_last(scores: FloatArray, after: int | None = None) -> float:
    """1/(T-1) Σ_{j<T} (R[j, j] - R[T, j]) = -BWT: called forgetting in some libraries (Avalanche's `Forgetting`)."""
    first = _first_tasks(scores, after)
    return _mean((np.diagonal(first[1:]) - first[-1])[:-1])


def learning_curve_area(curves: FloatArray, after: int | None = None) -> float:
    """LCA_β = 1/(β+1) Σ_{i≤β} Z_i, Z_i the mean over tasks of the score after i batches of each (Chaudhry et al. 2019).

    Args:
        curves: `[T, β + 1]`: the score on each task after 0, 1, ... β batches of its own training.
        after: See the module.
    """
    if curves.ndim != 2 or 0 in curves.shape:
        raise ValueError(f"curves must have the shape [num_tasks, beta + 1], but have {list(curves.shape)}.")
    return _mean(curves[: _last_task(len(curves), after)].mean(axis=0))


def _last_task(num_tasks: int, after: int | None) -> int:
    if after is not None and not 1 <= after <= num_tasks:
        raise ValueError(f"after must be a task from 1 to {num_tasks}, but is {after}.")
    return num_tasks if after is None else after


def _first_tasks(scores: FloatArray, after: int | None) -> FloatArray:
    """Cuts R to the first k tasks: `[k + 1, k]`."""
    if scores.ndim != 2 or scores.shape[0] != scores.shape[1] + 1 or scores.shape[1] == 0:
        raise ValueError(f"scores must have the shape [num_tasks + 1, num_tasks], but have {list(scores.shape)}.")
    last = _last_task(scores.shape[1], after)
    return scores[: last + 1, :last]


def _mean(values: FloatArray) -> float:
    return float(values.mean()) if len(values) else float("nan")


def of_last_row(row: Any, column: Any, last: int) -> Any:
    """The scores on the first k tasks after the k-th."""
    return (row == last) & (column < last)


def of_diagonal(row: Any, column: Any, last: int) -> Any:
    """The score on each of the first k tasks right after learning it."""
    return (row == column + 1) & (column < last)


def of_diagonal_and_last_row(row: Any, column: Any, last: int) -> Any:
    """Both, for the first k - 1 tasks."""
    return ((row == last) | (row == column + 1)) & (column < last - 1)


def before_learning(row: Any, column: Any, last: int) -> Any:
    """The scores on tasks 2 to k before the first task, and right before their own training."""
    return ((row == 0) | (row == column)) & (column > 0) & (column < last)


def of_all_rows(row: Any, column: Any, last: int) -> Any:
    """The scores on the first k - 1 tasks after each of the first k."""
    return (row > 0) & (row <= last) & (column < last - 1)


def of_curves(row: Any, column: Any, last: int) -> Any:
    """The learning curves of the first k tasks; a row a task."""
    return (row < last) & (column >= 0)
