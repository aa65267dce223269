import numpy as np
import pytest

from tasks.metrics import metrics
from tasks.metrics.metrics import METRICS, all_metrics
from tests.refusals import refused
from tests.tasks.scores import DIFFERENCES, NAN, R, matrix_of

AFTER_1_2_3 = {
    "average_accuracy": (0.90, (0.95 + 0.80) / 2, (0.70 + 0.60 + 0.85) / 3),
    "average_incremental_accuracy": (
        0.90,
        (0.90 + (0.95 + 0.80) / 2) / 2,
        (0.90 + (0.95 + 0.80) / 2 + (0.70 + 0.60 + 0.85) / 3) / 3,
    ),
    "learning_accuracy": (0.90, (0.90 + 0.80) / 2, (0.90 + 0.80 + 0.85) / 3),
    "backward_transfer": (NAN, 0.95 - 0.90, ((0.70 - 0.90) + (0.60 - 0.80)) / 2),
    "forward_transfer": (NAN, 0.25 - 0.20, ((0.25 - 0.20) + (0.40 - 0.30)) / 2),
    "forgetting": (NAN, 0.90 - 0.95, ((0.95 - 0.70) + (0.80 - 0.60)) / 2),
}


@pytest.mark.parametrize("name", AFTER_1_2_3)
def test_metrics_of_scores(name: str) -> None:
    measure, expected = getattr(metrics, name), AFTER_1_2_3[name]
    found = [measure(R, 1), measure(R, 2), measure(R, 3), measure(R, None)]
    assert found == pytest.approx([*expected, expected[-1]], abs=1e-12, nan_ok=True)


def test_all_of_them_and_losses_turn_the_signs_so_that_forgetting_is_worse() -> None:
    accuracies = all_metrics(matrix_of(R))
    last = {name: expected[-1] for name, expected in AFTER_1_2_3.items()}
    assert accuracies == pytest.approx(last)
    losses = all_metrics(matrix_of(1 - R, higher_is_better=False))
    for name, metric in METRICS.items():
        assert losses[name] == pytest.approx(accuracies[name] if metric.is_difference else 1 - accuracies[name])


def test_a_reader_is_told_what_a_score_is() -> None:
    assert metrics.title_of("average_accuracy", "accuracy") == "average accuracy"
    assert metrics.title_of("learning_accuracy", "loss") == "learning loss"


@pytest.mark.filterwarnings("error")
def test_of_one_task_no_difference_is_claimed() -> None:
    found = all_metrics(matrix_of(np.array([[0.1], [0.9]])))
    assert np.isnan([found[name] for name in DIFFERENCES]).all()
    assert found["average_accuracy"] == 0.9


@pytest.mark.parametrize("shape", [(3, 3), (3,), (1, 0), (5, 3)])
def test_scores_of_another_shape_are_refused(shape: tuple[int, ...]) -> None:
    for name in METRICS:
        with refused("scores"):
            METRICS[name].measure(np.zeros(shape), None)


@pytest.mark.parametrize("after", [0, 4, -1])
def test_there_must_be_such_a_task(after: int) -> None:
    for measure, given_ in ((metrics.forgetting, R), (all_metrics, matrix_of(R))):
        with refused("after"):
            measure(given_, after)  # type: ignore[operator]


@pytest.mark.parametrize(("is_loss", "gap"), [(False, (0.6 + 0.2) / 2), (True, (0.0 - 0.2) / 2)])
def test_scores_of_every_few_steps_by_hand(is_loss: bool, gap: float) -> None:
    matrix = matrix_of(R, not is_loss)
    matrix.record_step(1, 2, {"a": 0.5})
    matrix.record_step(2, 0, {"a": 0.9, "b": 0.2})
    matrix.record_step(2, 2, {"a": 0.3, "b": 0.6})
    matrix.record_step(3, 2, {"a": 0.7, "b": 0.6, "c": 0.8})
    assert "stability_gap" not in all_metrics(matrix_of(R))
    found = all_metrics(matrix)
    assert found["average_anytime_accuracy"] == pytest.approx((0.5 + 0.55 + 0.45 + 0.7) / 4)
    assert found["stability_gap"] == pytest.approx(gap)
    assert all_metrics(matrix, 2)["average_anytime_accuracy"] == pytest.approx((0.5 + 0.55 + 0.45) / 3)


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
