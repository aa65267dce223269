"""Metrics of continual learning by name."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from mixer.utils.arrays import FloatArray
from tasks.metrics.formulas import (
    average_accuracy,
    backward_transfer,
    before_learning,
    forgetting,
    forgetting_first_minus_last,
    forward_transfer,
    learning_accuracy,
    learning_curve_area,
    of_all_rows,
    of_curves,
    of_diagonal,
    of_diagonal_and_last_row,
    of_last_row,
)
from tasks.metrics.score_matrix import NOT_RECORDED, ScoreMatrix

__all__ = [
    "METRICS",
    "Metric",
    "all_metrics",
    "average_accuracy",
    "backward_transfer",
    "forgetting",
    "forgetting_first_minus_last",
    "forward_transfer",
    "learning_accuracy",
    "learning_curve_area",
    "title_of",
]

GEM = "Lopez-Paz and Ranzato 2017 (1706.08840)"
RIEMANNIAN_WALK = "Chaudhry et al. 2018 (1801.10112)"
A_GEM = "Chaudhry et al. 2019 (1812.00420), section 3"
_MOST_NAMED = 4


@dataclass(frozen=True)
class Metric:
    """A metric and its source.

    Args:
        measure: Computes it from R, or from the learning curves, and the number of the last task.
        formula: Its formula.
        source: The paper, with the number of the equation.
        reads: The scores that it reads, as a mask over row, column and the number of the last task.
        is_difference: Whether it is a difference of scores, so its sign flips if lower scores are better.
        is_of_curves: Whether it is computed from the learning curves instead of R.
    """

    measure: Callable[[FloatArray, int | None], float]
    formula: str
    source: str
    reads: Callable[[Any, Any, int], Any]
    is_difference: bool = False
    is_of_curves: bool = False

    def table(self, matrix: ScoreMatrix, beta: int) -> FloatArray:
        """Returns the input of `measure`: R, negated if needed, or the learning curves up to `beta` batches."""
        if self.is_of_curves:
            return matrix.learning_curves(beta)
        return -matrix.scores if self.is_difference and not matrix.higher_is_better else matrix.scores


METRICS: dict[str, Metric] = {
    "average_accuracy": Metric(average_accuracy, "(1/T) Σ_j R[T, j]", f"{GEM}, equation 2", of_last_row),
    "learning_accuracy": Metric(learning_accuracy, "(1/T) Σ_j R[j, j]", "Riemer et al. 2019 (1810.11910)", of_diagonal),
    "backward_transfer": Metric(
        backward_transfer,
        "1/(T-1) Σ_{j<T} (R[T, j] - R[j, j])",
        f"{GEM}, equation 3",
        of_diagonal_and_last_row,
        is_difference=True,
    ),
    "forward_transfer": Metric(
        forward_transfer,
        "1/(T-1) Σ_{j≥2} (R[j-1, j] - b_j)",
        f"{GEM}, equation 4",
        before_learning,
        is_difference=True,
    ),
    "forgetting": Metric(
        forgetting,
        "1/(T-1) Σ_{j<T} (max_{1≤l<T} R[l, j] - R[T, j])",
        f"{RIEMANNIAN_WALK}, equation 3",
        of_all_rows,
        is_difference=True,
    ),
    "forgetting_first_minus_last": Metric(
        forgetting_first_minus_last,
        "1/(T-1) Σ_{j<T} (R[j, j] - R[T, j])",
        "Avalanche's Forgetting; -BWT",
        of_diagonal_and_last_row,
        is_difference=True,
    ),
    "learning_curve_area": Metric(learning_curve_area, "1/(β+1) Σ_{i≤β} Z_i", A_GEM, of_curves, is_of_curves=True),
}


def all_metrics(matrix: ScoreMatrix, after: int | None = None, beta: int | None = None) -> dict[str, float]:
    """Computes all metrics, with the right signs for losses: positive transfer is good, positive forgetting is bad.

    Args:
        matrix: The matrix.
        after: Number of the last task to include; `None` for T.
        beta: Last number of batches for the area under the learning curves; `None` uses that of the matrix.

    Returns:
        Metrics by name, as in `METRICS`; NaN if `explain` has a reason.

    Raises:
        ValueError: If there is no such task or number of batches.
    """
    beta = matrix.beta if beta is None else beta
    with np.errstate(invalid="ignore"):  # the difference of two infinite losses is NaN, and explained as such
        return {name: metric.measure(metric.table(matrix, beta), after) for name, metric in METRICS.items()}


def title_of(name: str, metric: str) -> str:
    """Returns the title of a metric: for losses, average accuracy becomes average loss."""
    return name.replace("_", " ").replace("accuracy", metric)


def explain(matrix: ScoreMatrix, after: int | None = None, beta: int | None = None) -> dict[str, str]:
    """Explains unknown metrics; the arguments are those of `all_metrics`.

    Returns:
        For each metric that is NaN, the missing scores with their reasons.
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
    row, column = np.indices(table.shape)
    is_missing = np.isnan(table) & metric.reads(row, column, num_tasks if after is None else after)
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
