"""Forgetting curves: what becomes of each task's score as other tasks are learnt."""

from collections.abc import Mapping

import numpy as np

from mixer.analysis.report.plot import Plot, colours_of
from mixer.utils.arrays import FloatArray
from mixer.utils.text import between, known
from tasks.metrics.score_matrix import ScoreMatrix
from tasks.report.axes import after_tasks, common_range, score_panel, task_names


def forgetting_curves(matrices: Mapping[str, ScoreMatrix]) -> list[Plot]:
    """Plots the score on each task after each task, and what of its best is lost, a panel a run.

    Args:
        matrices: Matrices of the same metric, by name of the run.

    Returns:
        The two plots: a line a task; without panels where nothing was scored after a task.
    """
    matrices = {name: matrix for name, matrix in matrices.items() if any(matrix.recorded)}
    if not matrices:
        return []
    metric = next(iter(matrices.values())).metric
    return [
        _plot(
            matrices,
            f"Forgetting curves: {metric} on each task as others are learnt",
            f"The {metric} on each task, a line, before the first task and after each.",
            {name: matrix.scores for name, matrix in matrices.items()},
            f"the {metric}",
        ),
        _plot(
            matrices,
            "What was forgotten",
            f"By how much the {metric} on each task is worse than the best one since its training; 0 is nothing "
            "forgotten.",
            {name: forgotten(matrix) for name, matrix in matrices.items()},
            "it",
        ),
    ]


def forgotten(matrix: ScoreMatrix) -> FloatArray:
    """Compares scores with the best ones so far.

    Args:
        matrix: The scores.

    Returns:
        `[num_tasks + 1, num_tasks]`: by how much the score on task j (a column) is worse after task i (a row, 0 before
        the first) than the best since its training; NaN before that, and where there is no score.
    """
    scores = matrix.scores if matrix.higher_is_better else -matrix.scores
    scores[np.arange(len(scores))[:, None] <= np.arange(matrix.num_tasks)] = np.nan  # before its training
    best: FloatArray = np.fmax.accumulate(scores, axis=0)
    return best - scores


def _plot(
    matrices: Mapping[str, ScoreMatrix], title: str, caption: str, values: Mapping[str, FloatArray], what: str
) -> Plot:
    colours = colours_of(task_names(matrices))
    ends = common_range(list(values.values()))
    panels = []
    for name, matrix in matrices.items():
        places = np.arange(matrix.num_tasks + 1)
        lines = {task: (places, values[name][:, column]) for column, task in enumerate(matrix.task_names)}
        panels.append(score_panel(name, lines, colours, after_tasks(matrix.task_names), ends))
    words = " ".join(_in_words(name, matrix, values[name], what) for name, matrix in matrices.items())
    return Plot(title, f"{caption} {words}", panels, colours, columns=2)


def _in_words(name: str, matrix: ScoreMatrix, values: FloatArray, what: str) -> str:
    last = matrix.last_task
    row = known(dict(zip(matrix.task_names[:last], values[last].tolist(), strict=False)))
    when = f"In {name}, after {matrix.task_names[last - 1]},"
    return f"{when} {what} is {between(row, '{:.2f}'.format)}." if row else f"{when} no score is known."
