"""Metrics of continual learning by name, with their published formulas.

R `[T + 1, T]` belongs to a `ScoreMatrix`: R[i, j] is the score on task j after training on task i, both counted from 1.
b_j = R[0, j] is the score before the first task. Higher scores are better: negate losses. `after=k` computes the metric
of the first k tasks and ignores all rows and columns beyond; `None` takes all T. A metric is NaN if a score that it
reads is missing, and a difference between tasks is NaN for a single task.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from mixer.utils.arrays import FloatArray
from mixer.utils.errors import InvalidValueError
from tasks.metrics.score_matrix import ScoreMatrix


def average_accuracy(scores: FloatArray, after: int | None = None) -> float:
    """ACC = (1/T) Σ_j R[T, j]: the mean score at the end (Lopez-Paz and Ranzato 2017, 1706.08840, equation 2)."""
    return _mean(_first_tasks(scores, after)[-1])


def average_incremental_accuracy(scores: FloatArray, after: int | None = None) -> float:
    """(1/T) Σ_k (1/k) Σ_{j≤k} R[k, j]: the mean over tasks of ACC after each (Rebuffi et al. 2017, 1611.07725)."""
    first = _first_tasks(scores, after)[1:]
    return _mean(np.array([row[: number + 1].mean() for number, row in enumerate(first)]))


def learning_accuracy(scores: FloatArray, after: int | None = None) -> float:
    """LA = (1/T) Σ_j R[j, j]: the mean score on a task right after learning it, plasticity (Riemer et al. 2019)."""
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


def _last_task(num_tasks: int, after: int | None) -> int:
    if after is not None and not 1 <= after <= num_tasks:
        raise InvalidValueError.about("after", f"must be a task from 1 to {num_tasks}, but is {after}.")
    return num_tasks if after is None else after


def _first_tasks(scores: FloatArray, after: int | None) -> FloatArray:
    """Cuts R to the first k tasks: `[k + 1, k]`."""
    if scores.ndim != 2 or scores.shape[0] != scores.shape[1] + 1 or scores.shape[1] == 0:
        raise InvalidValueError.about("scores", f"must be [num_tasks + 1, num_tasks], got {list(scores.shape)}.")
    last = _last_task(scores.shape[1], after)
    return scores[: last + 1, :last]


def _mean(values: FloatArray) -> float:
    return float(values.mean()) if len(values) else float("nan")


@dataclass(frozen=True)
class Metric:
    """A metric; the docstring of `measure` has its formula and its source.

    Args:
        measure: Computes it from R and the number of the last task.
        is_difference: Whether it is a difference of scores, so its sign flips if lower scores are better.
    """

    measure: Callable[[FloatArray, int | None], float]
    is_difference: bool = False

    def table(self, matrix: ScoreMatrix) -> FloatArray:
        """Returns the input of `measure`: R, negated if needed."""
        return -matrix.scores if self.is_difference and not matrix.higher_is_better else matrix.scores


_PLAIN = (average_accuracy, average_incremental_accuracy, learning_accuracy)
_DIFFERENCES = (backward_transfer, forward_transfer, forgetting)
METRICS: dict[str, Metric] = {
    measure.__name__: Metric(measure, measure in _DIFFERENCES) for measure in (*_PLAIN, *_DIFFERENCES)
}
OF_COURSE = ("average_anytime_accuracy", "stability_gap")  # from the scores of every few steps, if there are any


def all_metrics(matrix: ScoreMatrix, after: int | None = None) -> dict[str, float]:
    """Computes all metrics, with the right signs for losses: positive transfer is good, positive forgetting is bad.

    Args:
        matrix: The matrix.
        after: Number of the last task to include; `None` for T.

    Returns:
        Metrics by name, as in `METRICS`, and those `OF_COURSE` if there is a course; NaN if a score is missing.

    Raises:
        ValueError: If there is no such task.
    """
    with np.errstate(invalid="ignore"):  # the difference of two infinite losses is NaN
        found = {name: metric.measure(metric.table(matrix), after) for name, metric in METRICS.items()}
        return found | (_of_course(matrix, after) if len(matrix.course) else {})


def _of_course(matrix: ScoreMatrix, after: int | None) -> dict[str, float]:
    last = _last_task(matrix.num_tasks, after)
    at_end = dict(zip(matrix.task_names, np.diagonal(matrix.scores[1:]).tolist(), strict=True))
    values = matrix.course.average_anytime(last), matrix.course.stability_gap(last, at_end)
    return dict(zip(OF_COURSE, values, strict=True))


def title_of(name: str, metric: str) -> str:
    """Returns the title of a metric: for losses, average accuracy becomes average loss."""
    return name.replace("_", " ").replace("accuracy", metric)
