"""Continual runs side by side."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from mixer.analysis.report.run import run_names
from tasks.metrics.score_matrix import SCORES_FILE, ScoreMatrix


def read_matrices(folders: Sequence[Path]) -> dict[str, ScoreMatrix]:
    """Reads the scores of continual runs, finished or going.

    Args:
        folders: Their output folders, at least one.

    Returns:
        The matrices, named by `run_names`.

    Raises:
        ValueError: If a folder is given twice or holds no scores, or the metrics differ.
    """
    names = run_names(folders)
    matrices = {name: ScoreMatrix.from_file(folder / SCORES_FILE) for name, folder in zip(names, folders, strict=True)}
    check_same_metric(matrices)
    return matrices


def check_same_metric(matrices: Mapping[str, ScoreMatrix]) -> None:
    """Makes sure that runs can be compared.

    Args:
        matrices: Matrices by name of the run.

    Raises:
        ValueError: If there is none, or they are of different metrics.
    """
    if len({(matrix.metric, matrix.higher_is_better) for matrix in matrices.values()}) != 1:
        metrics = {name: matrix.metric for name, matrix in matrices.items()}
        raise ValueError(
            f"Runs must be scored by one metric, to be shown on the same axes and in the same colours, got {metrics}."
        )
