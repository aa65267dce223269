"""Continual runs as a kind of report, and the page of scores that a run writes."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from mixer.analysis.report.contents import points_per_line
from mixer.analysis.report.page import write_page
from mixer.analysis.report.run import Run
from mixer.analysis.report.run_kinds import Report, ReportKind
from mixer.analysis.report.tables import differing_streams
from mixer.utils.files import read_json
from mixer.utils.text import duration, listed
from tasks.metrics.metrics import all_metrics, title_of
from tasks.metrics.score_matrix import SCORES_FILE, ScoreMatrix
from tasks.report.matrices import check_same_metric, read_matrices
from tasks.report.plots import score_plots, task_names
from tasks.report.training import joined_run, training_plots, training_rows
from tasks.task_folders import METRICS_FILE


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
    rows = [*metric_rows(list(matrices.values())), *training_rows(found), *cost_rows(folders)]
    return Report(list(matrices), rows, plots, " ".join(filter(None, notes)))


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


def metric_rows(matrices: Sequence[ScoreMatrix]) -> list[tuple[str, list[str]]]:
    """Returns the rows of the page's table about scores: a name, and a cell for each matrix."""
    columns = [all_metrics(matrix, matrix.last_task) for matrix in matrices]
    done = [f"{max([0, *matrix.recorded])} of {matrix.num_tasks}" for matrix in matrices]
    rows = [("Tasks done", done)]
    for name in dict.fromkeys(name for column in columns for name in column):
        title = title_of(name, matrices[0].metric).capitalize()
        rows.append((title, [_cell(column.get(name, np.nan)) for column in columns]))
    held_out = [matrix.held_out().ffill() for matrix in matrices]
    for name in dict.fromkeys(name for table in held_out for name in table.columns):
        title = f"{matrices[0].metric.capitalize()} on {name} (no task), first → last"
        rows.append((title, [_ends(table[name]) if name in table else "-" for table in held_out]))
    return rows


def _cell(value: float) -> str:
    return "not known" if np.isnan(value) else f"{value:.3f}"


def _ends(scores: "pd.Series[float]") -> str:
    return f"{_cell(scores.iloc[0])} → {_cell(scores.iloc[-1])}"


def cost_rows(folders: Sequence[Path]) -> list[tuple[str, list[str]]]:
    """Returns the rows about time, by task, and what the last finished one's state takes: a cell for each folder."""
    paces = [read_json(path / METRICS_FILE)["pace"] if (path / METRICS_FILE).exists() else {} for path in folders]
    costs: list[dict[str, int]] = [next(iter(reversed(pace.values())), {}) for pace in paces]
    made: dict[str, Callable[[dict[str, int]], str]] = {
        "Parameters (trained)": lambda cost: f"{cost['parameters']:,} ({cost['trainable_parameters']:,})",
        "Disk of the last task": lambda cost: f"{cost['disk_bytes'] / 1e6:,.1f} MB",
        "Most memory": lambda cost: f"{cost['memory_bytes'] / 1e6:,.0f} MB",
    }
    tasks = dict.fromkeys(task for pace in paces for task in pace)
    times = [(f"Time of {task}", [_time(pace[task]) if task in pace else "-" for pace in paces]) for task in tasks]
    rows = [(name, [cell(cost) if cost.get("parameters") else "-" for cost in costs]) for name, cell in made.items()]
    return [*times, *rows]


def _time(pace: Mapping[str, float]) -> str:
    return f"{duration(pace['seconds'])}, {pace['samples_per_second']:,.0f} samples/s"
