import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from tasks.metrics.score_matrix import SCORES_FILE, ScoreMatrix
from tests.refusals import refused
from tests.tasks.scores import NAMES, NAN

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
