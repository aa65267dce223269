"""Scores of several continual runs."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from mixer.report.run import run_names
from tasks.metrics.score_matrix import SCORES_FILE
from tasks.report.seeds import SeedScores, runs_in


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
        raise ValueError(f"There is no {SCORES_FILE} of a continual run in {absent}. Give the output folders of runs.")
    scores = {name: SeedScores.read(runs) for name, runs in zip(names, found, strict=True)}
    check_same_metric(scores)
    return scores


def check_same_metric(scores: Mapping[str, SeedScores]) -> None:
    """Raises a `ValueError` if there are no scores, or their metrics differ."""
    matrices = {name: next(iter(one.by_seed.values())) for name, one in scores.items()}
    if len({(matrix.metric, matrix.higher_is_better) for matrix in matrices.values()}) != 1:
        metrics = {name: matrix.metric for name, matrix in matrices.items()}
        raise ValueError(f"Runs must have the same metric to be compared, got {metrics}.")
