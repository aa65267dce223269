"""The published formulas of continual learning's metrics.

R [T + 1, T] is a `ScoreMatrix`'s: R[i, j] the score on task j after training on task i, both from 1, and b_j = R[0, j]
that of the model before the first task. A metric after task k is the metric of the first k tasks: it reads none of the
rows and columns beyond. A missing score that enters a metric makes it NaN.
"""

import numpy as np

from mixer.utils.arrays import FloatArray


def average_accuracy(scores: FloatArray, after: int | None = None) -> float:
    """ACC = (1/T) Σ_j R[T, j]: the mean score at the end (Lopez-Paz and Ranzato 2017, equation 2).

    Args:
        scores: R, `[T + 1, T]`.
        after: Number of the task to stand for the last one; `None` for T.

    Returns:
        The metric; NaN if a score is missing.

    Raises:
        ValueError: If R has another shape or there is no such task.
    """
    return _mean(_first_tasks(scores, after)[-1])


def learning_accuracy(scores: FloatArray, after: int | None = None) -> float:
    """LA = (1/T) Σ_j R[j, j]: the mean score on a task that was just learned (Riemer et al. 2019).

    Args:
        scores: R, `[T + 1, T]`.
        after: Number of the task to stand for the last one; `None` for T.

    Returns:
        The metric; NaN if a score is missing.

    Raises:
        ValueError: If R has another shape or there is no such task.
    """
    return _mean(np.diagonal(_first_tasks(scores, after)[1:]))


def backward_transfer(scores: FloatArray, after: int | None = None) -> float:
    """BWT = 1/(T-1) Σ_{j<T} (R[T, j] - R[j, j]): what later tasks added (Lopez-Paz and Ranzato 2017, equation 3).

    Args:
        scores: R, `[T + 1, T]`, higher scores being better: negate losses.
        after: Number of the task to stand for the last one; `None` for T.

    Returns:
        The metric; NaN if a score is missing or there is one task only.

    Raises:
        ValueError: If R has another shape or there is no such task.
    """
    first = _first_tasks(scores, after)
    return _mean((first[-1] - np.diagonal(first[1:]))[:-1])


def forward_transfer(scores: FloatArray, after: int | None = None) -> float:
    """FWT = 1/(T-1) Σ_{j≥2} (R[j-1, j] - b_j): what earlier tasks gave (Lopez-Paz and Ranzato 2017, equation 4).

    Args:
        scores: R, `[T + 1, T]`, higher scores being better: negate losses.
        after: Number of the task to stand for the last one; `None` for T.

    Returns:
        The metric; NaN if a score is missing, those of row 0 among them, or there is one task only.

    Raises:
        ValueError: If R has another shape or there is no such task.
    """
    first = _first_tasks(scores, after)
    return _mean((np.diagonal(first) - first[0])[1:])  # row j - 1, since row 0 comes before the first task


def forgetting(scores: FloatArray, after: int | None = None) -> float:
    """FGT = 1/(T-1) Σ_{j<T} (max_{1≤l<T} R[l, j] - R[T, j]): the loss from the best (Chaudhry et al. 2018, equation 3).

    The maximum leaves out row 0 and the last row, so that a task that is best at the end counts below 0.

    Args:
        scores: R, `[T + 1, T]`, higher scores being better: negate losses.
        after: Number of the task to stand for the last one; `None` for T.

    Returns:
        The metric, positive where tasks got worse; NaN if a score is missing or there is one task only.

    Raises:
        ValueError: If R has another shape or there is no such task.
    """
    first = _first_tasks(scores, after)[1:, :-1]
    return _mean(first[:-1].max(axis=0, initial=-np.inf) - first[-1])


def forgetting_first_minus_last(scores: FloatArray, after: int | None = None) -> float:
    """1/(T-1) Σ_{j<T} (R[j, j] - R[T, j]) = -BWT: what some libraries call forgetting (Avalanche's `Forgetting`).

    Args:
        scores: R, `[T + 1, T]`, higher scores being better: negate losses.
        after: Number of the task to stand for the last one; `None` for T.

    Returns:
        The metric, positive where tasks got worse; NaN if a score is missing or there is one task only.

    Raises:
        ValueError: If R has another shape or there is no such task.
    """
    first = _first_tasks(scores, after)
    return _mean((np.diagonal(first[1:]) - first[-1])[:-1])


def learning_curve_area(curves: FloatArray, after: int | None = None) -> float:
    """LCA_β = 1/(β+1) Σ_{i≤β} Z_i, Z_i the mean over tasks of the score after i batches of each (Chaudhry et al. 2019).

    Args:
        curves: `[T, β + 1]`: the score on each task after 0, 1, ... β batches of its own training.
        after: Number of the task to stand for the last one; `None` for T.

    Returns:
        The metric; NaN if a score is missing.

    Raises:
        ValueError: If the curves have another shape or there is no such task.
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
