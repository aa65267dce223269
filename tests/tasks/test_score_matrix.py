import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from tasks.metrics import metrics
from tasks.metrics.metrics import METRICS, all_metrics
from tasks.metrics.score_matrix import SCORES_FILE, ScoreMatrix
from tests.refusals import refused
from tests.tasks.scores import DIFFERENCES, NAMES, NAN, R, matrix_of

SCORES = st.floats(allow_nan=True, allow_infinity=True)


def bits(matrix: ScoreMatrix) -> tuple[bytes, bytes, dict[tuple[int, str], str], list[int]]:
    return matrix.scores.tobytes(), course_of(matrix).tobytes(), matrix.failures, matrix.recorded


def course_of(matrix: ScoreMatrix) -> Any:
    return matrix.course.to_pandas().to_numpy()


def record_task(matrix: ScoreMatrix, task: int, from_batch: int = 0) -> None:
    for num_batches in range(from_batch, 4):
        if task:
            matrix.record_step(task, num_batches, {"a": (task + num_batches) / 7})
    scores = {name: (task + place) / 3 for place, name in enumerate(NAMES)}
    failed = {"b": "it broke"} if task == 1 else {}
    matrix.record(task, {name: score for name, score in scores.items() if name not in failed}, failed)


def test_rows_are_numbered_from_before_the_first_task() -> None:
    matrix = ScoreMatrix(NAMES)
    matrix.record(0, {"a": 0.1, "b": 0.2, "c": 0.3})
    matrix.record(2, {"c": 0.6, "a": np.float32(0.5), "b": 1})
    assert matrix.recorded == [0, 2]
    np.testing.assert_array_equal(matrix.scores, [[0.1, 0.2, 0.3], [NAN] * 3, [0.5, 1.0, 0.6], [NAN] * 3])
    with pytest.raises(ValueError, match="read-only"):
        matrix.scores[0, 0] = 7.0
    table = matrix.to_pandas()
    table.loc[0, "a"] = 7.0  # it is the caller's
    assert matrix.scores[0, 0] == 0.1
    frame = matrix.to_pandas()
    assert (list(frame.columns), frame.index.name, frame.index.tolist()) == ([*NAMES], "after", [0, 1, 2, 3])
    assert frame.loc[2].to_dict() == {"a": 0.5, "b": 1.0, "c": 0.6}
    assert frame.loc[[1, 3]].isna().all(axis=None)


def test_an_evaluation_that_failed_keeps_its_reason_until_its_row_is_recorded_again() -> None:
    matrix = ScoreMatrix(NAMES)
    matrix.record(1, {"a": 0.5, "b": NAN}, {"b": "ValueError: no labels"})
    matrix.record(2, {"a": 0.5, "b": NAN})
    missing = {(2, "b"): "the evaluation gave NaN", (2, "c"): "not recorded"}
    assert matrix.failures == {(1, "b"): "ValueError: no labels", (1, "c"): "not recorded", **missing}
    assert np.isnan(matrix.scores[1:3, 1:]).all()
    matrix.record(1, {"b": 0.1, "c": 0.2, "a": 0.3})
    assert matrix.failures == missing
    assert matrix.scores[1].tolist() == [0.3, 0.1, 0.2]


def test_held_out_sets_are_scored_beside_the_tasks_and_stay_in_the_file(tmp_path: Path) -> None:
    matrix = ScoreMatrix(NAMES, metric="f1", path=tmp_path / SCORES_FILE, held_out=["old", "far"])
    for after, (old, far) in {0: (0.9, 0.5), 2: (0.12345, NAN)}.items():
        record_task(matrix, after)
        matrix.record_held_out(after, {"old": old, "far": far})
    matrix.record_held_out(2, {"old": 0.12345})  # one that is not evaluated has no score
    for scores in (matrix, ScoreMatrix.from_file(tmp_path / SCORES_FILE)):
        table = scores.held_out()
        assert (list(table.columns), table.index.name, table.index.tolist()) == (["old", "far"], "after", [0, 1, 2, 3])
        np.testing.assert_array_equal(table, [[0.9, 0.5], [NAN, NAN], [0.12345, NAN], [NAN, NAN]])
        assert scores.held_out_names == ("old", "far")
    lines = str(matrix).splitlines()
    assert lines[0] == "f1 on each task"
    assert [line.split() for line in lines[1:]] == [
        ["a", "b", "c", "old", "far"],
        ["before", "0.0000", "0.3333", "0.6667", "0.9000", "0.5"],
        ["after", "b", "0.6667", "1.0000", "1.3333", "0.1234", "-"],
    ]
    matrix.truncate(1)
    assert matrix.held_out().loc[2].isna().all()


@settings(max_examples=20)
@given(data=st.data(), higher_is_better=st.booleans(), metric=st.text())
def test_everything_comes_back_to_the_bit(tmp_path_factory, data, higher_is_better, metric) -> None:
    names = data.draw(st.lists(st.text(), min_size=1, max_size=4, unique=True))
    path = tmp_path_factory.mktemp("run") / "scores.json"
    matrix = ScoreMatrix(names, higher_is_better, metric, path=path)
    for after in data.draw(st.lists(st.integers(0, len(names)), unique=True, min_size=1)):
        scores = data.draw(st.dictionaries(st.sampled_from(names), SCORES))
        without = [name for name in names if np.isnan(scores.get(name, NAN))]
        failures = data.draw(st.dictionaries(st.sampled_from(without), st.text())) if without else {}
        matrix.record(after, scores, failures)
    for task, num_batches in data.draw(st.lists(st.tuples(st.integers(1, len(names)), st.integers(0, 5)))):
        matrix.record_step(task, num_batches, {names[0]: data.draw(SCORES)})
    read = ScoreMatrix.from_file(path)
    np.testing.assert_array_equal(read.scores, matrix.scores)
    np.testing.assert_array_equal(np.signbit(read.scores), np.signbit(matrix.scores) & ~np.isnan(matrix.scores))
    np.testing.assert_array_equal(course_of(read), course_of(matrix))
    assert (read.failures, read.recorded) == (matrix.failures, matrix.recorded)
    assert (read.task_names, read.higher_is_better, read.metric) == (tuple(names), higher_is_better, metric)


CHANGES: list[dict[str, Any]] = [
    {"tasks": ["a", "a"]},
    {"scores": {"0": [0.1]}},
    {"scores": {"9": [0.1, 0.2, 0.3]}},
    {"scores": {"0": [0.1, "x", 0.3]}},
    {"scores": [0.1]},
    {"course": {"0": {"a": 0.5}}},
    {"failures": {"0": {"a": "but it has a score"}}},
]


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    path = tmp_path / SCORES_FILE
    record_task(ScoreMatrix(NAMES, path=path), 0)
    good = path.read_text()
    changed = [json.dumps({**json.loads(good), **change}) for change in CHANGES]
    for content in [*changed, "", "[]", '{"format": 1}', '{"format": 1, "tas']:
        path.write_text(content)
        with refused("scores.json"):
            ScoreMatrix.from_file(path)
    path.write_text(good.replace('"format": 1', '"format": 2'))
    with refused("scores.json"):
        ScoreMatrix.from_file(path)
    path.unlink()
    with refused("scores.json"):
        ScoreMatrix.from_file(path)


@pytest.mark.parametrize(("after", "num_batches"), [(0, None), (1, None), (1, 0), (1, 2), (2, 3), (3, None)])
def test_a_resumed_run_ends_with_what_an_unbroken_one_has(tmp_path: Path, after: int, num_batches: int | None) -> None:
    whole = ScoreMatrix(NAMES, path=tmp_path / "whole.json")
    broken = ScoreMatrix(NAMES, path=tmp_path / "broken.json")
    for task in range(4):
        record_task(whole, task)
        record_task(broken, task)
    broken.record_step(min(after + 1, 3), 5, {"a": 99.0})  # later than where the run goes on
    resumed = ScoreMatrix.from_file(tmp_path / "broken.json")
    resumed.truncate(after, num_batches)
    if after == 3:
        whole.record_step(3, 5, {"a": 99.0})
    assert resumed.recorded == list(range(after + 1))
    assert all(row <= after for row, _ in resumed.failures)
    begun = sum(task == min(after + 1, 3) for task, _ in resumed.course.to_pandas().index)
    assert begun == {3: 5}.get(after, 0 if num_batches is None else num_batches + 1)
    assert bits(ScoreMatrix.from_file(tmp_path / "broken.json")) == bits(resumed)
    for task in range(after + 1, 4):
        record_task(resumed, task, 0 if task > after + 1 or num_batches is None else num_batches + 1)
    assert bits(resumed) == bits(whole)
    assert (tmp_path / "broken.json").read_bytes() == (tmp_path / "whole.json").read_bytes()


REFUSED: list[tuple[Callable[[ScoreMatrix], Any], str]] = [
    (lambda _: ScoreMatrix(()), "task_names"),
    (lambda _: ScoreMatrix("abc"), "task_names"),
    (lambda _: ScoreMatrix(("a", "b"), held_out=["b"]), "held_out"),
    (lambda matrix: matrix.record_held_out(4, {}), "after"),
    (lambda matrix: matrix.record(4, {}), "after"),
    (lambda matrix: matrix.truncate(4), "after"),
    (lambda matrix: matrix.record(0, {"d": 1.0}), "scores"),
    (lambda matrix: matrix.record(0, {"a": "0.5"}), "a"),  # type: ignore[dict-item]
    (lambda matrix: matrix.record(0, {"a": 0.5}, {"a": "why"}), "failures"),
    (lambda matrix: matrix.record_step(0, 0, {"a": 1.0}), "task"),
]


@pytest.mark.parametrize(("call", "option"), REFUSED)
def test_what_is_no_score_of_a_task_is_refused(call: Callable[[ScoreMatrix], Any], option: str) -> None:
    matrix = ScoreMatrix(NAMES)
    with refused(option):
        call(matrix)
    assert matrix.recorded == []
    assert not len(matrix.course)


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
