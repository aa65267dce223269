"""Lines of scores: one a task, over what was trained on."""

import html
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

from mixer.analysis.report.plot import Panel, panel
from mixer.utils.arrays import FloatArray
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
    traces = [
        go.Scatter(
            x=places[np.isfinite(scores)],
            y=scores[np.isfinite(scores)],
            name=html.escape(name),
            legendgroup=name,
            mode="lines+markers",
            line={"color": colours[name], "width": 2},
            hovertemplate="%{y:.4~g}",
        )
        for name, (places, scores) in lines.items()
    ]
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
