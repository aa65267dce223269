"""Learning curves: the score on each task in the first steps of its own training."""

from collections.abc import Mapping

import numpy as np

from mixer.analysis.report.plot import Plot, colours_of
from mixer.utils.arrays import FloatArray
from mixer.utils.text import between, known
from tasks.metrics.score_matrix import ScoreMatrix
from tasks.report.axes import common_range, score_panel, task_names


def learning_curves(matrices: Mapping[str, ScoreMatrix]) -> Plot:
    """Plots how quickly tasks are learnt, a panel a run.

    Args:
        matrices: Matrices of the same metric, by name of the run.

    Returns:
        The plot: a line a task; without panels where no curve was recorded.
    """
    curves = {name: matrix.learning_curves(matrix.beta) for name, matrix in matrices.items()}
    curves = {name: values for name, values in curves.items() if np.isfinite(values).any()}
    metric = next(iter(matrices.values())).metric
    colours = colours_of(task_names(matrices))
    panels = []
    for name, values in curves.items():
        batches = np.arange(values.shape[1])
        lines = {task: (batches, row) for task, row in zip(matrices[name].task_names, values, strict=True)}
        axis = {"title": {"text": "steps of its own training", "standoff": 8}, "range": [-0.3, values.shape[1] - 0.7]}
        panels.append(score_panel(name, lines, colours, axis, common_range(list(curves.values()))))
    caption = f"The {metric} on each task in the first steps of its own training. " + " ".join(
        _in_words(name, matrices[name], values) for name, values in curves.items()
    )
    return Plot("Learning curves", caption, panels, colours, columns=2)


def _in_words(name: str, matrix: ScoreMatrix, values: FloatArray) -> str:
    gained = values[:, -1] - values[:, 0]
    by_task = known(dict(zip(matrix.task_names, gained.tolist(), strict=True)))
    if not by_task:
        return f"In {name} no curve is whole yet."
    return f"In {name} it changes in {matrix.beta} steps by {between(by_task, '{:+.2f}'.format)}."
