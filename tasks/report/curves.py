"""Forgetting curves and learning curves of continual runs."""

import html
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

from mixer.analysis.report.plot import Panel, Plot, colours_of, panel
from mixer.utils.arrays import FloatArray
from mixer.utils.text import between, known
from tasks.metrics.score_matrix import ScoreMatrix


def task_names(matrices: Mapping[str, ScoreMatrix]) -> list[str]:
    """Lists the tasks of all runs, so that each has the same colour in every one.

    Args:
        matrices: Matrices by name of the run.

    Returns:
        Names, in the order of the first run that has them.
    """
    return list(dict.fromkeys(name for matrix in matrices.values() for name in matrix.task_names))


def score_panel(
    title: str,
    lines: Mapping[str, tuple[NDArray[Any], FloatArray]],
    colours: Mapping[str, str],
    x_axis: Mapping[str, Any],
    y_range: Sequence[float],
) -> Panel:
    """Draws lines of scores on one pair of axes.

    Args:
        title: What they show.
        lines: By name of the task, where its points stand and what they are; what is NaN is left out.
        colours: Colours by name of the task.
        x_axis: Properties of the level axis.
        y_range: Ends of the upright axis: the same in all panels that are compared.

    Returns:
        The panel.
    """
    traces = []
    for name, (places, scores) in lines.items():
        known = np.isfinite(scores)
        stroke = {"mode": "lines+markers", "line": {"color": colours[name], "width": 2}}
        text = {"name": html.escape(name), "legendgroup": name, "hovertemplate": "%{y:.4~g}"}
        traces.append(go.Scatter(x=places[known], y=scores[known], **stroke, **text))
    made = panel(title, traces, 1.0, range=list(y_range))
    made.figure.update_xaxes(unifiedhovertitle=None, **x_axis)
    return made


def after_tasks(names: Sequence[str]) -> dict[str, Any]:
    """Gives the axis of how many tasks were trained on.

    Args:
        names: Names of the tasks.

    Returns:
        Its properties.
    """
    labels = ["before", *(html.escape(name) for name in names)]
    every = -(-len(labels) // 12)  # of more tasks the names would stand on each other
    places = list(range(0, len(labels), every))
    return {
        "title": {"text": "after training on", "standoff": 8},
        "tickvals": places,
        "ticktext": [labels[place] for place in places],
        "range": [-0.3, len(names) + 0.3],
    }


def common_range(values: Sequence[FloatArray]) -> tuple[float, float]:
    """Chooses the ends of an axis on which all values that are compared can be seen.

    Args:
        values: The values; what is not finite does not count.

    Returns:
        The least and the greatest end.
    """
    known = np.concatenate([one[np.isfinite(one)].ravel() for one in values])
    least, greatest = (float(known.min()), float(known.max())) if len(known) else (0.0, 1.0)
    margin = 0.05 * (greatest - least or 1.0)
    return least - margin, greatest + margin


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
    scores = {name: matrix.scores for name, matrix in matrices.items()}
    lost = {name: forgotten(matrix) for name, matrix in matrices.items()}
    title = f"Forgetting curves: {metric} on each task as others are learnt"
    caption = f"The {metric} on each task, a line, before the first task and after each."
    lost_caption = f"Drop of the {metric} on each task from its best value since training; 0 means no forgetting."
    return [
        _plot(matrices, title, caption, scores, f"the {metric}"),
        _plot(matrices, "Forgetting since the best score", lost_caption, lost, "it"),
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
        _gains_in_words(name, matrices[name], values) for name, values in curves.items()
    )
    return Plot("Learning curves", caption, panels, colours, columns=2)


def _gains_in_words(name: str, matrix: ScoreMatrix, values: FloatArray) -> str:
    gained = values[:, -1] - values[:, 0]
    by_task = known(dict(zip(matrix.task_names, gained.tolist(), strict=True)))
    if not by_task:
        return f"No learning curve of {name} is complete yet."
    return f"In {name} it changes in {matrix.beta} steps by {between(by_task, '{:+.2f}'.format)}."
