"""Metrics of continual learning by name, each with its published formula.

The formulas are those of `tasks.metrics.formulas`. A metric that lacks a score is NaN; `explain` says which one.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

import tasks.metrics.cells as cells
from mixer.utils.arrays import BoolArray, FloatArray
from tasks.metrics.formulas import (
    average_accuracy,
    backward_transfer,
    forgetting,
    forgetting_first_minus_last,
    forward_transfer,
    learning_accuracy,
    learning_curve_area,
)
from tasks.metrics.score_matrix import ScoreMatrix

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


@dataclass(frozen=True)
class Metric:
    """A metric and where it comes from.

    Args:
        measure: Gives it from R, or from the learning curves, and the number of the last task.
        formula: Its formula.
        source: The paper, with the number of the equation.
        reads: Gives, from the table's shape and the number of the last task, which scores enter it.
        is_difference: Whether it compares scores, so that its sign turns where lower ones are better.
        is_of_curves: Whether it is one of the learning curves rather than of R.
    """

    measure: Callable[[FloatArray, int | None], float]
    formula: str
    source: str
    reads: Callable[[cells.Shape, int], BoolArray]
    is_difference: bool = False
    is_of_curves: bool = False

    def table(self, matrix: ScoreMatrix, beta: int) -> FloatArray:
        """Gives what it is a function of.

        Args:
            matrix: The matrix.
            beta: Last number of batches in the learning curves.

        Returns:
            R, negated where lower scores are better and signs matter, or the learning curves.

        Raises:
            ValueError: If there is no such number of batches.
        """
        if self.is_of_curves:
            return matrix.learning_curves(beta)
        return -matrix.scores if self.is_difference and not matrix.higher_is_better else matrix.scores


METRICS: dict[str, Metric] = {
    "average_accuracy": Metric(average_accuracy, "(1/T) Σ_j R[T, j]", f"{GEM}, equation 2", cells.of_last_row),
    "learning_accuracy": Metric(
        learning_accuracy, "(1/T) Σ_j R[j, j]", "Riemer et al. 2019 (1810.11910)", cells.of_diagonal
    ),
    "backward_transfer": Metric(
        backward_transfer,
        "1/(T-1) Σ_{j<T} (R[T, j] - R[j, j])",
        f"{GEM}, equation 3",
        cells.of_diagonal_and_last_row,
        is_difference=True,
    ),
    "forward_transfer": Metric(
        forward_transfer,
        "1/(T-1) Σ_{j≥2} (R[j-1, j] - b_j)",
        f"{GEM}, equation 4",
        cells.before_learning,
        is_difference=True,
    ),
    "forgetting": Metric(
        forgetting,
        "1/(T-1) Σ_{j<T} (max_{1≤l<T} R[l, j] - R[T, j])",
        f"{RIEMANNIAN_WALK}, equation 3",
        cells.of_all_rows,
        is_difference=True,
    ),
    "forgetting_first_minus_last": Metric(
        forgetting_first_minus_last,
        "1/(T-1) Σ_{j<T} (R[j, j] - R[T, j])",
        "Avalanche's Forgetting; -BWT",
        cells.of_diagonal_and_last_row,
        is_difference=True,
    ),
    "learning_curve_area": Metric(
        learning_curve_area, "1/(β+1) Σ_{i≤β} Z_i", A_GEM, cells.of_curves, is_of_curves=True
    ),
}


def all_metrics(matrix: ScoreMatrix, after: int | None = None, beta: int | None = None) -> dict[str, float]:
    """Gives every metric of a matrix, the signs right for losses too: transfer above 0 is good, forgetting is bad.

    Args:
        matrix: The matrix.
        after: Number of the task to stand for the last one; `None` for T.
        beta: Last number of batches in the area under the learning curves; `None` takes the matrix's own.

    Returns:
        Metrics by name, as in `METRICS`; NaN where `tasks.metrics.missing.explain` has a reason.

    Raises:
        ValueError: If there is no such task or number of batches.
    """
    beta = matrix.beta if beta is None else beta
    with np.errstate(invalid="ignore"):  # the difference of two infinite losses is NaN, and explained as such
        return {name: metric.measure(metric.table(matrix, beta), after) for name, metric in METRICS.items()}


def title_of(name: str, metric: str) -> str:
    """Gives what a metric is called to a reader: an average accuracy of losses is an average loss.

    Args:
        name: Its name in `METRICS`.
        metric: What a score is.

    Returns:
        The title.
    """
    return name.replace("_", " ").replace("accuracy", metric)
