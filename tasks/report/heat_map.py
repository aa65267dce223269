"""Score matrices as annotated heat maps."""

import html
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go

from mixer.analysis.report import plot
from mixer.analysis.report.plot import LAYOUT, Panel, Plot
from mixer.utils.text import between, known, listed
from tasks.metrics.metrics import explain, title_of
from tasks.metrics.score_matrix import NOT_RECORDED, ScoreMatrix

_MOST_TASKS_BESIDE = 10  # of more the cells would be too narrow for their numbers
_LONGEST_NAME = 24
_COLOURS = "Cividis"  # the same to those who do not tell red from green; its lightness alone shows the order


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
        f"The {first.metric} on each task, a column, before the first and after each, from top to bottom; "
        f"{'higher' if first.higher_is_better else 'lower'} is better and brighter. Framed: right after its own "
        "training; a cross: the evaluation failed. "
    ) + " ".join(_in_words(name, matrix) for name, matrix in matrices.items())


def _in_words(name: str, matrix: ScoreMatrix) -> str:
    if not matrix.recorded:
        return f"{name}: nothing was evaluated yet."
    last = matrix.recorded[-1]
    row = known(dict(zip(matrix.task_names, matrix.scores[last].tolist(), strict=True)))
    when = f"after {matrix.task_names[last - 1]}" if last else "before the first task"
    words = f"{when} it is {between(row, '{:.2f}'.format)}" if row else f"{when} no evaluation succeeded"
    reasons: dict[str, list[str]] = {}
    for metric, reason in explain(matrix, matrix.last_task).items():
        reasons.setdefault(reason, []).append(title_of(metric, matrix.metric))
    unknown = [f"not known: {listed(metrics)} ({reason})" for reason, metrics in reasons.items()]
    return f"{name}: {'; '.join([words, *unknown])}."


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
    return "" if np.isnan(score) else f"{score:.2f}" if max(abs(least), abs(greatest)) < 10 else f"{score:.3g}"
