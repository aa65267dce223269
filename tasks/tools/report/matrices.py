"""Scores of several continual runs, and the rows of a table about them."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from mixer.tools.records.runs import run_names
from mixer.utils.errors import InvalidValueError
from mixer.utils.statistics import over_seeds
from tasks.metrics.metrics import title_of
from tasks.metrics.score_matrix import SCORES_FILE
from tasks.metrics.seed_scores import SeedScores, cell, runs_in


def read_scores(folders: Sequence[Path]) -> dict[str, SeedScores]:
    """Reads the scores of continual runs, finished or not, with one seed or several.

    Args:
        folders: Their output folders, at least one.

    Returns:
        The scores, named by `run_names`.

    Raises:
        ValueError: If a folder is given twice or holds no scores, or the metrics differ.
    """
    names, found = run_names(folders), [runs_in(folder) for folder in folders]
    if absent := [str(folder) for folder, runs in zip(folders, found, strict=True) if not runs]:
        raise InvalidValueError.about("runs", f"must be folders of continual runs, but {absent} have no {SCORES_FILE}.")
    scores = {name: SeedScores.read(runs) for name, runs in zip(names, found, strict=True)}
    check_same_metric(scores)
    return scores


def check_same_metric(scores: Mapping[str, SeedScores]) -> None:
    """Raises a `ValueError` if there are no scores, or their metrics differ."""
    matrices = {name: next(iter(run.by_seed.values())) for name, run in scores.items()}
    if len({(matrix.metric, matrix.higher_is_better) for matrix in matrices.values()}) != 1:
        metrics = {name: matrix.metric for name, matrix in matrices.items()}
        raise InvalidValueError(f"Runs must have the same metric to be compared, got {metrics}.", option="runs")


def titled(scores: Mapping[str, SeedScores]) -> dict[str, SeedScores]:
    """Marks in the names which runs are means over seeds."""
    return {
        name if len(run.by_seed) == 1 else f"{name} (mean of {len(run.by_seed)} seeds)": run
        for name, run in scores.items()
    }


def metric_rows(scores: Mapping[str, SeedScores]) -> list[tuple[str, list[str]]]:
    """Returns the rows of a table about scores: a name, and a cell for each run."""
    columns = {name: run.metrics() for name, run in scores.items()}
    matrices = {name: run.mean for name, run in scores.items()}
    metric = next(iter(matrices.values())).metric
    rows = [("tasks done", [f"{max([0, *matrix.recorded])} of {matrix.num_tasks}" for matrix in matrices.values()])]
    for name in dict.fromkeys(name for column in columns.values() for name in column):
        cells = [cell(column.get(name), scores[run]) for run, column in columns.items()]
        rows.append((title_of(name, metric), cells))
    rows += _difference_rows(scores, metric)
    for name in dict.fromkeys(name for matrix in matrices.values() for name in matrix.held_out_names):
        title = f"on {name} (no task), first → last"
        rows.append((title, [_ends(run, name) if name in run.mean.held_out_names else "-" for run in scores.values()]))
    return rows


def _difference_rows(scores: Mapping[str, SeedScores], metric: str) -> list[tuple[str, list[str]]]:
    """Returns how metrics differ from the first run's, where any has several seeds."""
    (base, first), *others = scores.items()
    if all(len(run.by_seed) == 1 for run in scores.values()):
        return []
    found = [run.against(first) for _, run in others]
    names = dict.fromkeys(name for differences in found for name, run in differences.items() if not np.isnan(run.mean))
    cells = {name: [own[name].text() if name in own else "-" for own in found] for name in names}
    return [(f"{title_of(name, metric)}, against {base}", ["", *own]) for name, own in cells.items()]


def _ends(scores: SeedScores, name: str) -> str:
    tables = [matrix.held_out()[name].ffill() for matrix in scores.by_seed.values()]
    return " → ".join(cell(over_seeds([table.iloc[end] for table in tables]), scores) for end in (0, -1))
