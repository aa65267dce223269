"""Which scores a metric of continual learning lacks."""

import numpy as np

from mixer.utils.arrays import BoolArray, FloatArray
from tasks.metrics.metrics import METRICS, Metric, all_metrics
from tasks.metrics.score_matrix import NOT_RECORDED, ScoreMatrix

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


_MOST_NAMED = 4


def explain(matrix: ScoreMatrix, after: int | None = None, beta: int | None = None) -> dict[str, str]:
    """Says why metrics are not known.

    Args:
        matrix: The matrix.
        after: As in `all_metrics`.
        beta: As in `all_metrics`.

    Returns:
        By name of each metric that is NaN, the scores it lacks, each with the reason.

    Raises:
        ValueError: If there is no such task or number of batches.
    """
    beta, reasons = matrix.beta if beta is None else beta, {}
    for name, value in all_metrics(matrix, after, beta).items():
        if np.isnan(value):
            reasons[name] = _reason(matrix, METRICS[name], METRICS[name].table(matrix, beta), after)
    return reasons


def missing_entries(metric: Metric, table: FloatArray, after: int | None = None) -> list[tuple[int, int]]:
    """Finds which missing scores make a metric NaN: those without which it is NaN even if no other is missing.

    Args:
        metric: The metric, one of `METRICS`.
        table: R or the learning curves, whichever it is a function of.
        after: Number of the task to stand for the last one; `None` for T.

    Returns:
        Row and column of each; none if it is NaN by itself, as forgetting is with one task.

    Raises:
        ValueError: If the table has another shape or there is no such task.
    """
    if np.isnan(metric.measure(np.zeros_like(table), after)):
        return []
    num_tasks = table.shape[0 if metric.is_of_curves else 1]
    is_missing = np.isnan(table) & metric.reads(table.shape, num_tasks if after is None else after)
    return [(row, column) for row, column in np.argwhere(is_missing).tolist()]


def _reason(matrix: ScoreMatrix, metric: Metric, table: FloatArray, after: int | None) -> str:
    places = missing_entries(metric, table, after)
    if not places:
        return "scores are infinite" if np.isfinite(metric.measure(np.zeros_like(table), after)) else "needs two tasks"
    if metric.is_of_curves and np.isnan(table).all():
        return "no learning curve was recorded"
    parts = [_named(matrix, metric, row, column) for row, column in places[:_MOST_NAMED]]
    more = len(places) - len(parts)
    return f"missing: {'; '.join(parts)}{f'; and {more} more' if more else ''}"


def _named(matrix: ScoreMatrix, metric: Metric, row: int, column: int) -> str:
    if metric.is_of_curves:
        return f"{matrix.task_names[row]} after {column} of its batches"
    name = matrix.task_names[column]
    when = f"after {matrix.task_names[row - 1]}" if row else "before the first task"
    return f"{name} {when} ({matrix.failures.get((row, name), NOT_RECORDED)})"
