import numpy as np
import pytest

from tasks.metrics.metrics import METRICS, explain, missing_entries
from tasks.metrics.score_matrix import ScoreMatrix
from tests.tasks.scores import CURVES, DIFFERENCES, NAMES, NAN, OF_SCORES, R, matrix_of

NEEDED = {  # rows from 0, before the first task; columns from 0
    "average_accuracy": {(3, 0), (3, 1), (3, 2)},
    "average_incremental_accuracy": {(1, 0), (2, 0), (2, 1), (3, 0), (3, 1), (3, 2)},
    "learning_accuracy": {(1, 0), (2, 1), (3, 2)},
    "backward_transfer": {(1, 0), (2, 1), (3, 0), (3, 1)},
    "forward_transfer": {(1, 1), (2, 2), (0, 1), (0, 2)},
    "forgetting": {(1, 0), (1, 1), (2, 0), (2, 1), (3, 0), (3, 1)},
    "forgetting_first_minus_last": {(1, 0), (2, 1), (3, 0), (3, 1)},
}


@pytest.mark.parametrize("name", OF_SCORES)
def test_a_missing_score_is_never_left_out(name: str) -> None:
    assert set(missing_entries(METRICS[name], np.full((4, 3), np.nan))) == NEEDED[name]
    for place in np.ndindex(4, 3):
        scores = R.copy()
        scores[place] = np.nan
        assert np.isnan(METRICS[name].measure(scores, None)) == (place in NEEDED[name])
        assert missing_entries(METRICS[name], scores) == ([place] if place in NEEDED[name] else [])


def test_the_reason_names_the_scores_and_what_failed() -> None:
    matrix = ScoreMatrix(NAMES)
    matrix.record(1, {"a": 0.9, "b": 0.2, "c": 0.2})
    matrix.record(2, {"a": 0.9, "c": 0.2}, {"b": "OutOfMemoryError: 2 GiB"})
    matrix.record(3, {"a": 0.9, "b": NAN, "c": 0.2})
    reasons = explain(matrix)
    assert reasons["learning_accuracy"] == "missing: b after b (OutOfMemoryError: 2 GiB)"
    assert reasons["average_accuracy"] == "missing: b after c (the evaluation gave NaN)"
    assert reasons["forward_transfer"] == (
        "missing: b before the first task (not recorded); c before the first task (not recorded)"
    )
    assert reasons["learning_curve_area"] == "no learning curve was recorded"
    assert explain(matrix, after=1).keys() == {*DIFFERENCES, "learning_curve_area"}
    assert explain(ScoreMatrix(NAMES))["forgetting"].endswith("b after b (not recorded); and 2 more")


def test_a_learning_curve_that_ends_early_is_named_and_infinite_losses_are() -> None:
    curves = CURVES.copy()
    curves[1, 2] = np.nan
    matrix = matrix_of(R, curves=curves)
    assert explain(matrix, beta=2) == {"learning_curve_area": "missing: b after 2 of its batches"}
    assert explain(matrix, beta=1) == explain(matrix_of(R, curves=CURVES), beta=2) == {}
    losses = 1 - R
    losses[[1, 3], 0] = np.inf
    matrix = matrix_of(losses, higher_is_better=False, curves=CURVES)
    assert explain(matrix, beta=2)["backward_transfer"] == "scores are infinite"
    reasons = explain(matrix_of(np.array([[0.1], [0.9]])))
    assert {reasons[name] for name in DIFFERENCES} == {"needs two tasks"}
