"""Which scores a metric of continual learning lacks."""

import numpy as np

from mixer.utils.arrays import FloatArray
from tasks.metrics.metrics import METRICS, Metric, all_metrics
from tasks.metrics.score_matrix import NOT_RECORDED, ScoreMatrix

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
