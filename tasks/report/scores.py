"""Scores in the report: metrics, matrices, forgetting and learning curves."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from mixer.analysis.report.kinds import Report
from mixer.analysis.report.page import write_page
from mixer.analysis.report.plot import Plot
from tasks.metrics.metrics import all_metrics, title_of
from tasks.metrics.score_matrix import ScoreMatrix
from tasks.report.compared import check_same_metric
from tasks.report.curves import forgetting_curves, learning_curves
from tasks.report.heat_map import heat_maps


def write_scores(matrices: Mapping[str, ScoreMatrix], path: str | Path) -> Path:
    """Writes a page about scores alone.

    Args:
        matrices: Matrices of the same metric, at least one, by name of the run.
        path: Where the page goes.

    Returns:
        Path of the page.

    Raises:
        ValueError: If there is no matrix, they are of different metrics, or the path is a folder.
    """
    check_same_metric(matrices)
    target = Path(path)
    if target.is_dir():
        raise ValueError(f"path must be a file, but {target} is a folder: give {target / 'scores.html'}, say.")
    return write_page(target, Report(list(matrices), metric_rows(list(matrices.values())), score_plots(matrices)))


def score_plots(matrices: Mapping[str, ScoreMatrix]) -> list[Plot]:
    """Plots scores; plots without content are left out."""
    plots = [heat_maps(matrices), *forgetting_curves(matrices), learning_curves(matrices)]
    return [plot for plot in plots if plot.panels]


def metric_rows(matrices: Sequence[ScoreMatrix]) -> list[tuple[str, list[str]]]:
    """Returns the rows of the page's table about scores: a name, and a cell for each matrix."""
    columns = [all_metrics(matrix, matrix.last_task) for matrix in matrices]
    done = [f"{max([0, *matrix.recorded])} of {matrix.num_tasks}" for matrix in matrices]
    rows = [("Tasks done", done)]
    for name in columns[0]:
        title = title_of(name, matrices[0].metric).capitalize()
        rows.append((title, ["not known" if np.isnan(one[name]) else f"{one[name]:.3f}" for one in columns]))
    return rows
