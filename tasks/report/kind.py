"""Continual runs as a kind of report."""

from collections.abc import Sequence
from pathlib import Path

from mixer.analysis.report.contents import points_per_line
from mixer.analysis.report.kinds import Report, ReportKind
from mixer.analysis.report.run import Run
from mixer.analysis.report.tables import differing_streams
from mixer.utils.text import listed
from tasks.metrics.score_matrix import SCORES_FILE
from tasks.report.compared import read_matrices
from tasks.report.curves import task_names
from tasks.report.scores import metric_rows, score_plots
from tasks.report.training import joined_run, training_plots, training_rows


def continual_run() -> ReportKind:
    """Returns the kind of report for folders with a score matrix."""
    return ReportKind("a continual run", lambda folder: (folder / SCORES_FILE).is_file(), contents)


def contents(folders: Sequence[Path]) -> Report:
    """Reads what a page shows of continual runs, finished or going.

    Args:
        folders: Their output folders.

    Returns:
        The page's contents: metrics, scores, and how the tasks were trained on one data clock.

    Raises:
        ValueError: If a folder is given twice, holds no scores, or they are of different metrics.
    """
    matrices = read_matrices(folders)
    found = [
        joined_run(folder, name, matrix.task_names)
        for folder, (name, matrix) in zip(folders, matrices.items(), strict=True)
    ]
    runs: list[Run] = [run for run in found if run is not None]
    plots = score_plots(matrices)
    if runs:
        plots += training_plots(runs, task_names(matrices), points_per_line(runs))
    missing = [name for name, run in zip(matrices, found, strict=True) if run is None]
    notes = [f"No step recorded yet: {listed(missing)}." if missing else "", differing_streams(runs)]
    rows = [*metric_rows(list(matrices.values())), *training_rows(found)]
    return Report(list(matrices), rows, plots, " ".join(filter(None, notes)))
