import datetime
import json
import subprocess
import sys
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tasks.sequences import (
    Picked,
    Transformed,
    blurry,
    by_class,
    by_column,
    by_domain,
    by_time,
    from_data_sets,
    permuted,
    rotated,
)
from tasks.sources import Arrays, labels_of
from tasks.task import TaskSequence
from tests.tasks.data import assert_columns_are_samples, data_of, numbered_arrays, numbered_table, numbers_in

KINDS = ["arrays", "table", "images"]
LABELS = st.lists(st.integers(0, 6), min_size=1, max_size=40)


def assert_parts_are_whole(sequence: TaskSequence, num_train: int, num_evaluation: int) -> None:
    """Every sample is in exactly one task, and samples keep their order."""
    for part, count in (("train", num_train), ("evaluation", num_evaluation)):
        numbers = [numbers_in(getattr(task, part)) for task in sequence]
        assert sorted(number for some in numbers for number in some) == list(range(count))
        assert all(some == sorted(some) for some in numbers)


# ---- By class ----


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", [None, 3])
def test_each_sample_is_in_the_task_of_its_class(kind: str, seed: int | None) -> None:
    labels = [0, 2, 1, 5, 0, 2, 2, 5, 1]
    sequence = by_class(data_of(kind, labels), data_of(kind, labels[:4]), 2, seed=seed)
    assert_parts_are_whole(sequence, 9, 4)
    assert sequence.scenario == "class"
    for task in sequence:
        assert set(labels_of(task.train)) == set(labels_of(task.evaluation)) == set(task.classes)
    if seed is None:
        assert [task.classes for task in sequence] == [(0, 1), (2, 5)]


@given(LABELS, st.integers(1, 8), st.none() | st.integers(0, 100))
def test_any_number_of_classes_is_shared_out(labels: list[int], classes_per_task: int, seed: int | None) -> None:
    classes = sorted(set(labels))
    data = numbered_arrays(labels)
    if classes_per_task > len(classes):
        with pytest.raises(ValueError, match="classes_per_task must be a whole number between 1 and the"):
            by_class(data, data, classes_per_task, seed=seed)
        return
    sequence = by_class(data, data, classes_per_task, seed=seed)
    assert_parts_are_whole(sequence, len(labels), len(labels))
    left = len(classes) % classes_per_task
    assert [len(task.classes) for task in sequence][-1] == (left or classes_per_task)
    assert sequence.classes_seen(len(sequence) - 1) == tuple(classes)


def test_the_seed_orders_the_classes() -> None:
    data = numbered_arrays(range(20))
    orders = {tuple(task.classes for task in by_class(data, data, 2, seed=seed)) for seed in (1, 1, 2, 3)}
    assert len(orders) == 3


def test_groups_have_names_and_an_order() -> None:
    data = numbered_arrays([0, 1, 2, 3])
    sequence = by_class(data, data, groups={"odd": [3, 1], "even": [0, 2]}, scenario="task")
    assert [(task.name, task.classes) for task in sequence] == [("odd", (3, 1)), ("even", (0, 2))]
    assert by_class(data, data, groups=[[2], [0, 1, 3]]).names == ("task_1", "task_2")


@pytest.mark.parametrize("kind", ["arrays", "table"])
def test_classes_of_domains_are_numbered_anew(kind: str) -> None:
    labels = [3, 8, 5, 6, 8, 3]
    sequence = by_class(data_of(kind, labels), data_of(kind, labels), groups=[[8, 3], [5, 6]], scenario="domain")
    assert_parts_are_whole(sequence, 6, 6)
    assert sequence.num_classes == 2
    assert [list(labels_of(task.train)) for task in sequence] == [[1, 0, 0, 1], [0, 1]]
    assert [list(labels_of(task.evaluation)) for task in sequence] == [[1, 0, 0, 1], [0, 1]]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "give classes_per_task or groups, one of them, got None and None"),
        ({"classes_per_task": 1, "groups": [[0]]}, "one of them"),
        ({"classes_per_task": 0}, "between 1 and the 4 classes"),
        ({"groups": [[0, 1], [2]]}, r"groups leave out the classes \[3\]"),
        ({"groups": [[0, 1], [2, 3, 1]]}, r"groups name more than once \[1\]"),
        ({"groups": [[0, 1], [2, 3, 7]]}, r"groups name classes without samples \[7\]"),
        ({"groups": []}, "groups leave out"),
        ({"groups": [[0, 1, 2, 3]], "seed": 1}, "groups have an order already"),
        ({"classes_per_task": 3, "scenario": "domain"}, "'task_1' .* 'task_2' .* scenario='class'"),
        ({"classes_per_task": 2, "scenario": "new"}, "scenario must be one of"),
    ],
)
def test_what_is_no_partition_of_classes(options: dict[str, Any], message: str) -> None:
    data = numbered_arrays([0, 1, 2, 3])
    with pytest.raises(ValueError, match=message):
        by_class(data, data, **options)


def test_classes_that_one_part_lacks_are_named() -> None:
    some, more = numbered_arrays([0, 1]), numbered_arrays([0, 1, 4])
    with pytest.raises(ValueError, match=r"evaluation has samples of class \[4\], of which train has none"):
        by_class(some, more, 1)
    with pytest.raises(ValueError, match=r"Task 'task_3': evaluation is empty"):
        by_class(more, some, 1)
    with pytest.raises(ValueError, match=r"Task 'task_1': evaluation has no example of the promised classes \[4\]"):
        by_class(more, some, 3)


def test_rows_that_cannot_be_indexed_are_refused() -> None:
    rows = numbered_table([0, 1]).to_iterable_dataset()
    for build in (lambda: by_class(rows, rows, 1), lambda: by_column(rows, rows, "number")):
        with pytest.raises(TypeError, match="train must be a data set with __len__ and __getitem__, got a Iterable"):
            build()


def test_data_without_labels_are_refused() -> None:
    words = numbered_table(["yes", "no"])
    with pytest.raises(ValueError, match=r"train: a Dataset without classes.*number classes that are words"):
        by_class(words, words, 1)


# ---- By column and by time ----


@given(st.lists(st.sampled_from(["de", "en", "fr"]), min_size=1, max_size=30))
def test_each_value_is_a_task(languages: list[str]) -> None:
    table = numbered_table([0] * len(languages), language=languages)
    sequence = by_column(table, table, "language")
    assert_parts_are_whole(sequence, len(languages), len(languages))
    assert sequence.names == tuple(sorted(set(languages)))
    assert all(set(task.train["language"]) == {task.name} for task in sequence)


def test_the_order_of_values_can_be_given() -> None:
    table = numbered_table([0, 1, 0, 1], year=[2020, 2021, 2021, 2020])
    assert by_domain(table, table, "year", order=[2021, 2020]).names == ("2021", "2020")
    for order in ([2021], [2021, 2021], [2020, 2021, 2022]):
        with pytest.raises(ValueError, match=r"order must name each value of 'year' once, \[2020, 2021\]"):
            by_column(table, table, "year", order=order)


def test_a_column_may_be_an_attribute() -> None:
    data = numbered_arrays([0, 1, 0, 1])
    assert [numbers_in(task.train) for task in by_column(data, data, "labels", scenario="task")] == [[0, 2], [1, 3]]


def test_columns_that_cannot_part_data() -> None:
    table = numbered_table([0, 1], language=["de", "en"], score=[1.0, None])
    with pytest.raises(ValueError, match=r"train: there is no column 'lang' .* its columns are \['number'"):
        by_column(table, table, "lang")
    with pytest.raises(ValueError, match=r"train: there is no column 'lang' .* in Arrays it would be an attribute"):
        by_column(numbered_arrays([0]), numbered_arrays([0]), "lang")
    with pytest.raises(ValueError, match="train: 1 samples have no 'score'"):
        by_column(table, table, "score")
    with pytest.raises(ValueError, match=r"evaluation has samples of language \['en'\], of which train has none"):
        by_column(table.select([0]), table, "language")
    with pytest.raises(ValueError, match="Task 'en': evaluation is empty"):
        by_column(table, table.select([0]), "language", scenario="class")
    with pytest.raises(ValueError, match=r"scenario='domain' needs the same classes .* 'de' \[0\], 'en' \[1\]"):
        by_column(table, table, "language")


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=40, unique=True), st.integers(1, 6))
def test_periods_hold_as_many_samples_each(moments: list[int], num_tasks: int) -> None:
    table = numbered_table([0] * len(moments), when=moments)
    if num_tasks > len(moments):
        with pytest.raises(ValueError, match="num_tasks must be a whole number between 1 and"):
            by_time(table, table, "when", num_tasks=num_tasks)
        return
    sequence = by_time(table, table, "when", num_tasks=num_tasks)
    assert_parts_are_whole(sequence, len(moments), len(moments))
    sizes = [len(task.train) for task in sequence]
    assert len(sizes) == num_tasks
    assert max(sizes) - min(sizes) <= 1
    for earlier, later in zip(sequence, sequence[1:] if num_tasks > 1 else (), strict=False):
        assert max(earlier.train["when"]) < min(later.train["when"])


@pytest.mark.parametrize(
    ("moments", "boundary"),
    [
        ([1.5, 9.0, 3.0, 3.5], 3.5),
        (["2020-01-01", "2024-05-01", "2021-12-31", "2022-01-01"], "2022-01-01"),
    ],
)
def test_a_boundary_is_the_first_moment_of_its_task(moments: list[Any], boundary: Any) -> None:
    table = numbered_table([0, 1, 1, 0], when=moments)
    sequence = by_time(table, table, "when", boundaries=[boundary], scenario="domain")
    assert [numbers_in(task.train) for task in sequence] == [[0, 2], [1, 3]]
    assert sequence[1].description == f"{boundary} <= when"


def test_dates_part_data() -> None:
    days = [datetime.datetime(2020 + year, 1, 1) for year in (0, 3, 1, 2)]
    table = numbered_table([0, 0, 0, 0], when=days)
    expected = [[0, 2], [1, 3]]
    assert [numbers_in(task.train) for task in by_time(table, table, "when", num_tasks=2)] == expected
    for boundary in (days[3], "2022-01-01"):
        assert [numbers_in(task.train) for task in by_time(table, table, "when", boundaries=[boundary])] == expected
    assert [numbers_in(task.train) for task in by_column(table, table, "when")] == [[0], [2], [3], [1]]
    with pytest.raises(ValueError, match="train: 1 samples have no 'when'"):
        by_time(numbered_table([0, 0], when=[days[0], None]), table, "when", num_tasks=1)


def test_periods_that_cannot_be() -> None:
    table = numbered_table([0, 0, 0, 0], when=[1, 1, 1, 2])
    with pytest.raises(ValueError, match="Too few different moments for so many tasks: lower num_tasks"):
        by_time(table, table, "when", num_tasks=3)
    with pytest.raises(ValueError, match=r"boundaries must ascend, got \[2, 1\]"):
        by_time(table, table, "when", boundaries=[2, 1])
    with pytest.raises(ValueError, match="Task 'task_2': train is empty"):
        by_time(table, table, "when", boundaries=[3])
    with pytest.raises(ValueError, match="give boundaries or num_tasks, one of them"):
        by_time(table, table, "when")
    words = numbered_table([0, 0], when=["a", "b"])
    assert len(by_time(words, words, "when", boundaries=[])) == 1


# ---- Transformed inputs ----


@pytest.fixture
def pictures() -> Arrays:
    return Arrays(torch.rand(30, 16, generator=torch.Generator().manual_seed(1)), np.arange(30) % 3)


@pytest.mark.parametrize("first_is_identity", [True, False])
def test_permuted_tasks_share_the_data(pictures: Arrays, first_is_identity: bool) -> None:
    sequence = permuted(pictures, pictures, 4, seed=5, first_is_identity=first_is_identity)
    assert (sequence.scenario, sequence.num_classes, len(sequence)) == ("domain", 3, 4)
    assert (sequence[0].train is pictures) == first_is_identity
    first_samples = [task.train[0]["pixel_values"] for task in sequence]
    assert len({tuple(sample.tolist()) for sample in first_samples}) == 4
    assert len({tuple(sample.sort().values.tolist()) for sample in first_samples}) == 1
    for task in sequence[1:]:
        assert task.train.base is task.evaluation.base is pictures
        assert task.train.transform is task.evaluation.transform
        assert_columns_are_samples(task.train)


def test_each_permuted_task_draws_samples_of_its_own(pictures: Arrays) -> None:
    sequence = permuted(pictures, pictures, 3, seed=5, samples_per_task=12)
    drawn = [sequence[0].train.indices, *(task.train.base.indices for task in sequence[1:])]
    assert all(len(set(indices.tolist())) == 12 for indices in drawn)
    assert len({tuple(sorted(indices.tolist())) for indices in drawn}) == 3
    assert all(len(task.evaluation) == 30 for task in sequence)
    assert isinstance(sequence[0].train, Picked)


def test_rotated_tasks(pictures: Arrays) -> None:
    sequence = rotated(pictures, pictures, [0, 90, 12.5], samples_per_task=20)
    assert sequence.names == ("rotated_0", "rotated_90", "rotated_12.5")
    assert [len(task.train) for task in sequence] == [20] * 3
    image = pictures[4]["pixel_values"]
    assert torch.equal(sequence[0].evaluation[4]["pixel_values"], image)
    quarter = torch.rot90(image.reshape(4, 4)).flatten()
    torch.testing.assert_close(sequence["rotated_90"].evaluation[4]["pixel_values"], quarter)
    assert isinstance(sequence[2].train, Transformed)
    assert_columns_are_samples(sequence[2].train)


def test_inputs_that_cannot_be_transformed(pictures: Arrays) -> None:
    with pytest.raises(ValueError, match="permuted: num_tasks must be a whole number, 1 or more, got 0"):
        permuted(pictures, pictures, 0, seed=0)
    with pytest.raises(
        ValueError, match="samples_per_task must be a whole number between 1 and the 30 there are, got 31"
    ):
        permuted(pictures, pictures, 2, seed=0, samples_per_task=31)
    with pytest.raises(TypeError, match=r"put them into memory, tasks\.sources\.Arrays"):
        permuted(numbered_table([0, 1]), numbered_table([0, 1]), 2, seed=0)
    with pytest.raises(ValueError, match=r"Names of tasks must be unique.*rotated_30"):
        rotated(pictures, pictures, [30, 30])
    with pytest.raises(ValueError, match=r"12 pixels are no square; say size=\(height, width\)"):
        rotated(numbered_arrays([0, 1], 12), numbered_arrays([0, 1], 12), [30])
    assert len(rotated(numbered_arrays([0, 1], 12), numbered_arrays([0, 1], 12), [30], size=(3, 4))) == 1


# ---- Blurred boundaries ----


@given(st.integers(1, 4), st.floats(0, 0.99), st.integers(0, 50))
def test_a_share_of_each_class_is_spread_evenly(num_tasks: int, overlap: float, seed: int) -> None:
    labels = np.repeat(np.arange(5), 24)
    sequence = blurry(numbered_arrays(labels), numbered_arrays(labels), num_tasks, overlap, seed)
    assert_parts_are_whole(sequence, len(labels), len(labels))
    assert sequence.scenario == "free"
    num_spread = min(round(24 * overlap), 23) if num_tasks > 1 else 0
    for task in sequence:
        counts = np.bincount(task.train.labels, minlength=5)
        even = num_spread / max(num_tasks - 1, 1)
        for label in range(5):
            if label in task.classes:
                assert counts[label] == 24 - num_spread
            else:
                assert np.floor(even) <= counts[label] <= np.ceil(even)
        assert set(task.evaluation.labels) == set(task.classes)


def test_what_cannot_be_blurred() -> None:
    data = numbered_arrays([0, 1, 2])
    with pytest.raises(ValueError, match=r"overlap must be a share, at least 0 and below 1, got 1\.0"):
        blurry(data, data, 2, 1.0, seed=0)
    with pytest.raises(
        ValueError, match="num_tasks must be a whole number between 1 and the 3 classes there are, got 4"
    ):
        blurry(data, data, 4, 0.1, seed=0)


# ---- From data sets ----


def test_data_sets_are_tasks() -> None:
    pairs = {"a": (numbered_arrays([0, 1]), numbered_arrays([1])), "b": (numbered_table([1, 0]), numbered_table([0]))}
    sequence = from_data_sets(pairs, "domain")
    assert (sequence.names, sequence[1].train) == (("a", "b"), pairs["b"][0])
    with pytest.raises(TypeError, match=r"'a': give a pair \(train, evaluation\), got Arrays"):
        from_data_sets({"a": numbered_arrays([0])}, "class")  # type: ignore[dict-item]


# ---- The same everywhere ----

_SAME = """
import datetime
import json
import numpy as np
from tasks.sequences import *
from tasks.sources import Arrays
data = Arrays(np.random.default_rng(0).random((60, 9), dtype=np.float32), np.arange(60) % 6)
sequences = [by_class(data, data, 4, seed=7), permuted(data, data, 3, seed=7, samples_per_task=30),
             rotated(data, data, [10, 70], samples_per_task=30, seed=7), blurry(data, data, 3, 0.4, seed=7)]
told = [(task.name, task.classes, [values[:3].tolist() for values in task.train.read_columns(np.arange(9)).values()])
        for sequence in sequences for task in sequence]
"""


def test_another_process_builds_the_same_tasks() -> None:
    here: dict[str, Any] = {}
    np.random.seed(3)  # noqa: NPY002  # the global generator has no say
    exec(_SAME, here)  # noqa: S102
    program = _SAME + "print(json.dumps(told))"
    there = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert json.loads(there.stdout.splitlines()[-1]) == json.loads(json.dumps(here["told"]))


def test_memory_does_not_grow_with_the_number_of_tasks() -> None:
    data = numbered_arrays(np.arange(1000) % 10, 16)
    bases = Counter(id(task.evaluation.base) for task in permuted(data, data, 50, seed=0, first_is_identity=False))
    assert bases == {id(data): 50}
