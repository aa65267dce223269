"""Plots of the scores of continual runs: heat maps, forgetting curves and learning curves."""

import html
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go

from mixer.tools.report import plot
from mixer.tools.report.plot import LAYOUT, Panel, Plot, colours_of, panel
from mixer.utils.arrays import FloatArray
from mixer.utils.text import between, known, listed
from tasks.metrics.metrics import all_metrics, title_of
from tasks.metrics.score_matrix import NOT_RECORDED, ScoreMatrix

_MOST_TASKS_BESIDE = 10  # of more the cells would be too narrow for their numbers
_LONGEST_NAME = 24
_COLOURS = "Cividis"  # the same to those who do not tell red from green; its lightness alone shows the order


def score_plots(matrices: Mapping[str, ScoreMatrix]) -> list[Plot]:
    """Plots scores; plots without content are left out."""
    plots = [heat_maps(matrices), *forgetting_curves(matrices), courses(matrices)]
    return [plot for plot in plots if plot.panels]


def heat_maps(matrices: Mapping[str, ScoreMatrix]) -> Plot:
    """Plots score matrices in the same colours, a panel a matrix.

    Args:
        matrices: Matrices of the same metric, by name of the run.

    Returns:
        The plot.
    """
    finite = np.concatenate([matrix.scores[np.isfinite(matrix.scores)] for matrix in matrices.values()])
    least, greatest = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 1.0)
    panels = [Panel(name, heat_map(matrix, least, greatest)) for name, matrix in matrices.items()]
    is_wide = len(panels) == 1 or max(matrix.num_tasks for matrix in matrices.values()) > _MOST_TASKS_BESIDE
    return Plot("Scores on the tasks", _caption(matrices), panels, columns=1 if is_wide else min(len(panels), 3))


def heat_map(matrix: ScoreMatrix, least: float, greatest: float) -> go.Figure:
    """Draws a matrix: a row before the first task and one after each, a column a task.

    Args:
        matrix: The matrix.
        least: Score at one end of the colours.
        greatest: Score at the other: the same in all matrices that are compared.

    Returns:
        The figure; a task that was just learned is framed, a score that failed is a cross.
    """
    scores, names = matrix.scores, [_short(name) for name in matrix.task_names]
    rows = ["before", *(f"after {name}" for name in names)]
    trace = plot.heat_map(
        scores,
        "%{customdata}<br>%{z:.6g}",
        [[f"{row}: {name}" for name in names] for row in rows],
        text=[[_written(score, least, greatest) for score in row] for row in scores],
        texttemplate="%{text}",
        colorscale=_COLOURS,
        reversescale=not matrix.higher_is_better,
        zmin=least,
        zmax=greatest,
        xgap=1,
        ygap=1,
        colorbar={"title": {"text": html.escape(matrix.metric), "side": "right"}},
    )
    return go.Figure([trace], _layout(matrix, names, rows))


def _caption(matrices: Mapping[str, ScoreMatrix]) -> str:
    first = next(iter(matrices.values()))
    return (
        f"The {first.metric} on each task, one column per task, before the first and after each, from top to bottom; "
        f"{'higher' if first.higher_is_better else 'lower'} is better and brighter. Framed: right after its own "
        "training; a cross: the evaluation failed. "
    ) + " ".join(_matrix_in_words(name, matrix) for name, matrix in matrices.items())


def _matrix_in_words(name: str, matrix: ScoreMatrix) -> str:
    if not matrix.recorded:
        return f"{name}: nothing was evaluated yet."
    last = matrix.recorded[-1]
    row = known(dict(zip(matrix.task_names, matrix.scores[last].tolist(), strict=True)))
    when = f"after {matrix.task_names[last - 1]}" if last else "before the first task"
    words = f"{when} it is {between(row, '{:.2f}'.format)}" if row else f"{when} no evaluation succeeded"
    metrics = all_metrics(matrix, matrix.last_task)
    unknown = [title_of(metric, matrix.metric) for metric, value in metrics.items() if np.isnan(value)]
    return f"{name}: {words}{f'; not known: {listed(unknown)}' if unknown else ''}."


def _layout(matrix: ScoreMatrix, names: Sequence[str], rows: Sequence[str]) -> dict[str, Any]:
    return {
        **LAYOUT,
        "height": 160 + 30 * len(rows),
        "xaxis": _axis(names, "score on"),
        "yaxis": {**_axis(rows, ""), "autorange": "reversed"},
        "shapes": [_frame(task) for task in matrix.recorded if task],
        "annotations": _crosses(matrix),
    }


def _axis(labels: Sequence[str], title: str) -> dict[str, Any]:
    ticks = {"tickvals": list(range(len(labels))), "ticktext": list(labels), "automargin": True}
    return {"title": {"text": title, "standoff": 8}, **ticks, "showgrid": False, "zeroline": False}


def _frame(task: int) -> dict[str, Any]:
    edges = {"x0": task - 1.5, "x1": task - 0.5, "y0": task - 0.5, "y1": task + 0.5}
    return {"type": "rect", **edges, "line": {"color": "#e07b39", "width": 2}}


def _crosses(matrix: ScoreMatrix) -> list[dict[str, Any]]:
    cross = {"text": "\N{MULTIPLICATION SIGN}", "showarrow": False}
    return [
        {"x": matrix.task_names.index(name), "y": after, "hovertext": html.escape(reason), **cross}
        for (after, name), reason in matrix.failures.items()
        if reason != NOT_RECORDED
    ]


def _short(name: str) -> str:
    return html.escape(name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 1]}…")


def _written(score: float, least: float, greatest: float) -> str:
    if np.isnan(score):
        return ""
    return f"{score:.2f}" if max(abs(least), abs(greatest)) < 10 else f"{score:.3g}"


def task_names(matrices: Mapping[str, ScoreMatrix]) -> list[str]:
    """Lists the tasks of all runs, so that each has the same colour in every one.

    Args:
        matrices: Matrices by name of the run.

    Returns:
        Names, in the order of the first run that has them.
    """
    return list(dict.fromkeys(name for matrix in matrices.values() for name in matrix.task_names))


def _curves(
    matrices: Mapping[str, ScoreMatrix],
    title: str,
    caption: str,
    values: Mapping[str, FloatArray],
    axis_of: Callable[[ScoreMatrix], dict[str, Any]],
) -> Plot:
    """Plots scores as curves, one panel per run and one line per task, from tables `[num_tasks, num_points]` by run."""
    colours, ends = colours_of(task_names(matrices)), list(common_range(list(values.values())))
    panels = []
    for run, rows in values.items():
        traces = []
        for task, scores in zip(matrices[run].task_names, rows, strict=True):
            places = np.flatnonzero(np.isfinite(scores))
            stroke = {"mode": "lines+markers", "line": {"color": colours[task], "width": 2}}
            text = {"name": html.escape(task), "legendgroup": task, "hovertemplate": "%{y:.4~g}"}
            traces.append(go.Scatter(x=places, y=scores[places], **stroke, **text))
        drawn = panel(run, traces, 1.0, range=ends)
        drawn.figure.update_xaxes(unifiedhovertitle=None, **axis_of(matrices[run]))
        panels.append(drawn)
    return Plot(title, caption, panels, colours, columns=2)


def _after_tasks(matrix: ScoreMatrix) -> dict[str, Any]:
    """Returns the axis of how many tasks were trained on."""
    labels = ["before", *(html.escape(name) for name in matrix.task_names)]
    every = -(-len(labels) // 12)  # of more tasks the names would stand on each other
    places = list(range(0, len(labels), every))
    return {
        "title": {"text": "after training on", "standoff": 8},
        "tickvals": places,
        "ticktext": [labels[place] for place in places],
        "range": [-0.3, matrix.num_tasks + 0.3],
    }


def common_range(values: Sequence[FloatArray]) -> tuple[float, float]:
    """Chooses the ends of an axis on which all values that are compared can be seen.

    Args:
        values: The values; what is not finite does not count.

    Returns:
        The least and the greatest end.
    """
    known = np.concatenate([np.zeros(0), *(part[np.isfinite(part)].ravel() for part in values)])
    least, greatest = (float(known.min()), float(known.max())) if len(known) else (0.0, 1.0)
    margin = 0.05 * (greatest - least or 1.0)
    return least - margin, greatest + margin


def forgetting_curves(matrices: Mapping[str, ScoreMatrix]) -> list[Plot]:
    """Plots the score on each task after each task, and what of its best is lost, a panel a run.

    Args:
        matrices: Matrices of the same metric, by name of the run.

    Returns:
        The two plots; one line per task; without panels where nothing was scored after a task.
    """
    matrices = {name: matrix for name, matrix in matrices.items() if any(matrix.recorded)}
    if not matrices:
        return []
    metric = next(iter(matrices.values())).metric
    scores = {name: matrix.scores.T for name, matrix in matrices.items()}
    lost = {name: forgotten(matrix).T for name, matrix in matrices.items()}
    caption = f"The {metric} on each task, one line per task, before the first task and after each."
    lost_caption = f"Drop of the {metric} on each task from its best value since training; 0 means no forgetting."

    def drawn(title: str, caption: str, values: Mapping[str, FloatArray], what: str) -> Plot:
        words = [_in_words(name, matrix, values[name], what) for name, matrix in matrices.items()]
        return _curves(matrices, title, " ".join([caption, *words]), values, _after_tasks)

    title = f"Forgetting curves: {metric} on each task as others are learnt"
    first = drawn(title, caption, scores, f"the {metric}")
    return [first, drawn("Forgetting since the best score", lost_caption, lost, "it")]


def forgotten(matrix: ScoreMatrix) -> FloatArray:
    """Compares scores with the best ones so far.

    Args:
        matrix: The scores.

    Returns:
        `[num_tasks + 1, num_tasks]`: by how much the score on task j (a column) is worse after task i (a row, 0 before
        the first) than the best since its training; NaN before that, and where there is no score.
    """
    scores = matrix.scores.copy() if matrix.higher_is_better else -matrix.scores
    scores[np.arange(len(scores))[:, None] <= np.arange(matrix.num_tasks)] = np.nan  # before its training
    best: FloatArray = np.fmax.accumulate(scores, axis=0)
    return best - scores


def _in_words(name: str, matrix: ScoreMatrix, values: FloatArray, what: str) -> str:
    last = matrix.last_task
    row = known(dict(zip(matrix.task_names, values[:last, last].tolist(), strict=False)))
    when = f"In {name}, after {matrix.task_names[last - 1]},"
    return f"{when} {what} is {between(row, '{:.2f}'.format)}." if row else f"{when} no score is known."


def courses(matrices: Mapping[str, ScoreMatrix]) -> Plot:
    """Plots the scores on tasks while later ones are learnt, a panel a run.

    Args:
        matrices: Matrices of the same metric, by name of the run.

    Returns:
        The plot; one line per task; without panels where scores were taken at the ends of tasks only.
    """
    values = {name: matrix.course.to_pandas().to_numpy().T for name, matrix in matrices.items() if len(matrix.course)}
    metric = next(iter(matrices.values())).metric
    caption = f"The {metric} on each task seen so far: whether a dip after a new task begins heals."
    return _curves(matrices, "Scores while tasks are learnt", caption, values, _evaluations)


def _evaluations(matrix: ScoreMatrix) -> dict[str, Any]:
    tasks = [task for task, _ in matrix.course.to_pandas().index]
    begins = {matrix.task_names[task - 1]: tasks.index(task) for task in dict.fromkeys(tasks)}
    return {
        "title": {"text": "evaluations, from the beginning of each task", "standoff": 8},
        "tickvals": [*begins.values()],
        "ticktext": [html.escape(_short(name)) for name in begins],
        "range": [-0.3, len(tasks) - 0.7],
    }
