"""Score matrices of several continual runs."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from mixer.analysis.report.run import run_names
from tasks.metrics.score_matrix import SCORES_FILE, ScoreMatrix


def read_matrices(folders: Sequence[Path]) -> dict[str, ScoreMatrix]:
    """Reads the scores of continual runs, finished or not.

    Args:
        folders: Their output folders, at least one.

    Returns:
        The matrices, named by `run_names`.

    Raises:
        ValueError: If a folder is given twice or holds no scores, or the metrics differ.
    """
    names = run_names(folders)
    if absent := [str(folder) for folder in folders if not (folder / SCORES_FILE).is_file()]:
        raise ValueError(f"There is no {SCORES_FILE} of a continual run in {absent}. Give the output folders of runs.")
    matrices = {name: ScoreMatrix.from_file(folder / SCORES_FILE) for name, folder in zip(names, folders, strict=True)}
    check_same_metric(matrices)
    return matrices


def check_same_metric(matrices: Mapping[str, ScoreMatrix]) -> None:
    """Raises a `ValueError` if there is no matrix, or their metrics differ."""
    if len({(matrix.metric, matrix.higher_is_better) for matrix in matrices.values()}) != 1:
        metrics = {name: matrix.metric for name, matrix in matrices.items()}
        raise ValueError(f"Runs must have the same metric to be compared, got {metrics}.")
