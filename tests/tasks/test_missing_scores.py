import numpy as np
import pytest

from tasks.metrics.metrics import METRICS
from tests.tasks.scores import R

NEEDED = {  # rows from 0, before the first task; columns from 0
    "average_accuracy": {(3, 0), (3, 1), (3, 2)},
    "average_incremental_accuracy": {(1, 0), (2, 0), (2, 1), (3, 0), (3, 1), (3, 2)},
    "learning_accuracy": {(1, 0), (2, 1), (3, 2)},
    "backward_transfer": {(1, 0), (2, 1), (3, 0), (3, 1)},
    "forward_transfer": {(1, 1), (2, 2), (0, 1), (0, 2)},
    "forgetting": {(1, 0), (1, 1), (2, 0), (2, 1), (3, 0), (3, 1)},
}


@pytest.mark.parametrize("name", METRICS)
def test_a_missing_score_is_never_left_out(name: str) -> None:
    for place in np.ndindex(4, 3):
        scores = R.copy()
        scores[place] = np.nan
        assert np.isnan(METRICS[name].measure(scores, None)) == (place in NEEDED[name])
