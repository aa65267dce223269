"""A score matrix and learning curves small enough to be worked out by hand."""

import numpy as np

from tasks.metrics.metrics import METRICS
from tasks.metrics.score_matrix import ScoreMatrix

R = np.array(
    [
        [0.10, 0.20, 0.30],  # before the first task
        [0.90, 0.25, 0.20],
        [0.95, 0.80, 0.40],  # the first task is best after the second
        [0.70, 0.60, 0.85],
    ]
)
NAMES = ("a", "b", "c")
NAN = float("nan")
DIFFERENCES = [name for name, metric in METRICS.items() if metric.is_difference]


def matrix_of(scores: np.ndarray, higher_is_better: bool = True) -> ScoreMatrix:
    names = NAMES[: scores.shape[1]]
    matrix = ScoreMatrix(names, higher_is_better)
    for after, row in enumerate(scores.tolist()):
        matrix.record(after, dict(zip(names, row, strict=True)))
    return matrix
