"""Plots of a fit: predicted against true objectives, and the objective along each stream's share."""

import importlib
from pathlib import Path
from typing import Any

import numpy as np

from mixer.tools.analysis.fit.fitted import FittedMixture
from mixer.utils.files import write_text

_NUM_SHARES = 41
_SURE = 1.645


def write_plot(fitted: FittedMixture, path: Path) -> None:
    """Writes both plots into a page.

    Args:
        fitted: The fit.
        path: Where to; an HTML file.

    Raises:
        ValueError: If Plotly is not installed.
    """
    try:
        graphs: Any = importlib.import_module("plotly.graph_objects")
        make_subplots = importlib.import_module("plotly.subplots").make_subplots
        label = importlib.import_module("mixer.tools.report.plot").label
    except ModuleNotFoundError:
        raise ValueError("--plot needs plotly, which is not installed: pip install 'adaptive-mixer[report]'.") from None
    titles = ["mixtures left out", *(f"share of {label(name)}" for name in fitted.streams)]
    figure = make_subplots(rows=len(titles), cols=1, subplot_titles=titles)
    seen, left_out = fitted.seen, fitted.sign * fitted.prediction.left_out
    figure.add_trace(graphs.Scatter(x=seen, y=left_out, mode="markers", name="predicted"), row=1, col=1)
    ends = [seen.min(), seen.max()]
    figure.add_trace(graphs.Scatter(x=ends, y=ends, mode="lines", name="as recorded"), row=1, col=1)
    for number in range(len(fitted.streams)):
        shares, means, deviations = along(fitted, number)
        for value in (means, means - _SURE * deviations, means + _SURE * deviations):
            figure.add_trace(graphs.Scatter(x=shares, y=value, mode="lines", showlegend=False), row=number + 2, col=1)
    figure.update_layout(height=320 * len(titles), title=f"Fit of {label(fitted.objective)}", showlegend=False)
    write_text(path, figure.to_html(include_plotlyjs=True))


def along(fitted: FittedMixture, stream: int) -> tuple[Any, Any, Any]:
    """Predicts the objective along a stream's share within the runs' range, the others in the mixture's proportions.

    Returns:
        Shares, predictions and standard deviations.
    """
    own = fitted.mixtures[:, stream]
    shares = np.linspace(own.min(), min(own.max(), 1.0), _NUM_SHARES)
    others = fitted.shares.copy()
    others[stream] = 0.0
    rest = others / others.sum() if others.sum() > 0.0 else np.ones_like(others) / (len(others) - 1)
    points = (1.0 - shares)[:, None] * rest
    points[:, stream] = shares
    means, deviations = fitted.prediction.moments(points / points.sum(axis=1, keepdims=True))
    return shares, fitted.sign * means, deviations
