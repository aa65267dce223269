import datetime
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from tasks.sequences import blurry, by_class, by_column, by_time, permuted, rotated
from tasks.sources import Arrays, labels_of
from tasks.task import TaskSequence
from tests.tasks.data import assert_columns_are_samples, data_of, numbered_arrays, numbered_table, numbers_in

PICTURES = Arrays(torch.rand(30, 16, generator=torch.Generator().manual_seed(1)), np.arange(30) % 3)
LABELS = st.lists(st.integers(0, 6), min_size=1, max_size=40)


def assert_parts_are_whole(sequence: TaskSequence, num_train: int, num_evaluation: int) -> None:
    """Every sample is in exactly one task, and samples keep their order."""
    for part, count in (("train", num_train), ("evaluation", num_evaluation)):
        numbers = [numbers_in(getattr(task, part)) for task in sequence]
        assert sorted(number for some in numbers for number in some) == list(range(count))
        assert all(some == sorted(some) for some in numbers)


@pytest.mark.parametrize("kind", ["arrays", "table", "images"])
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
    data, groups = data_of(kind, labels), {"odd": [5, 1], "even": [0, 2]}
    named = by_class(data, data, groups=groups, scenario="task")
    assert [(task.name, task.classes) for task in named] == [("odd", (5, 1)), ("even", (0, 2))]


@given(LABELS, st.integers(1, 7), st.none() | st.integers(0, 100))
def test_any_number_of_classes_is_shared_out(labels: list[int], classes_per_task: int, seed: int | None) -> None:
    classes, data = sorted(set(labels)), numbered_arrays(labels)
    classes_per_task = min(classes_per_task, len(classes))
    sequence = by_class(data, data, classes_per_task, seed=seed)
    assert_parts_are_whole(sequence, len(labels), len(labels))
    assert len(sequence[-1].classes or ()) == (len(classes) % classes_per_task or classes_per_task)
    assert sequence.classes_seen(len(sequence) - 1) == tuple(classes)


@pytest.mark.parametrize("kind", ["arrays", "table"])
def test_classes_of_domains_are_numbered_anew(kind: str) -> None:
    labels = [3, 8, 5, 6, 8, 3]
    sequence = by_class(data_of(kind, labels), data_of(kind, labels), groups=[[8, 3], [5, 6]], scenario="domain")
    assert_parts_are_whole(sequence, 6, 6)
    assert sequence.num_classes == 2
    for part in ("train", "evaluation"):
        assert [list(labels_of(getattr(task, part))) for task in sequence] == [[1, 0, 0, 1], [0, 1]]


@settings(max_examples=8)
@given(st.lists(st.sampled_from(["de", "en", "fr"]), min_size=1, max_size=30))
def test_each_value_is_a_task(languages: list[str]) -> None:
    table = numbered_table([0] * len(languages), language=languages)
    sequence = by_column(table, table, "language")
    assert_parts_are_whole(sequence, len(languages), len(languages))
    assert sequence.names == tuple(sorted(set(languages)))
    assert all(set(task.train["language"]) == {task.name} for task in sequence)
    order = sorted(set(languages), reverse=True)
    assert by_column(table, table, "language", order=order).names == tuple(order)


@settings(max_examples=8)
@given(st.lists(st.integers(0, 1000), min_size=1, max_size=40, unique=True), st.integers(1, 6))
def test_periods_hold_as_many_samples_each(moments: list[int], num_tasks: int) -> None:
    table, num_tasks = numbered_table([0] * len(moments), when=moments), min(num_tasks, len(moments))
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
        ([datetime.datetime(year, 1, 1) for year in (2020, 2023, 2021, 2022)], "2022-01-01"),
    ],
)
def test_a_boundary_is_the_first_moment_of_its_task(moments: list[Any], boundary: Any) -> None:
    table = numbered_table([0, 1, 1, 0], when=moments)
    sequence = by_time(table, table, "when", boundaries=[boundary], scenario="domain")
    assert [numbers_in(task.train) for task in sequence] == [[0, 2], [1, 3]]
    assert [numbers_in(task.train) for task in by_time(table, table, "when", num_tasks=2)] == [[0, 2], [1, 3]]


@pytest.mark.parametrize("first_is_identity", [True, False])
def test_permuted_tasks_share_the_data(first_is_identity: bool) -> None:
    sequence = permuted(PICTURES, PICTURES, 4, seed=5, first_is_identity=first_is_identity)
    assert (sequence.scenario, sequence.num_classes, len(sequence)) == ("domain", 3, 4)
    assert (sequence[0].train is PICTURES) == first_is_identity
    first_samples = [task.train[0]["pixel_values"] for task in sequence]
    assert len({tuple(sample.tolist()) for sample in first_samples}) == 4
    assert len({tuple(sample.sort().values.tolist()) for sample in first_samples}) == 1
    for task in sequence[1:]:
        assert task.train.base is task.evaluation.base is PICTURES
        assert task.train.transform is task.evaluation.transform
        assert_columns_are_samples(task.train)


def test_each_permuted_task_draws_samples_of_its_own() -> None:
    sequence = permuted(PICTURES, PICTURES, 3, seed=5, samples_per_task=12)
    drawn = [sequence[0].train.indices, *(task.train.base.indices for task in sequence[1:])]
    assert all(len(set(indices.tolist())) == 12 for indices in drawn)
    assert len({tuple(sorted(indices.tolist())) for indices in drawn}) == 3
    assert all(len(task.evaluation) == 30 for task in sequence)


def test_rotated_tasks() -> None:
    sequence = rotated(PICTURES, PICTURES, [0, 90, 12.5], samples_per_task=20)
    assert sequence.names == ("rotated_0", "rotated_90", "rotated_12.5")
    assert [len(task.train) for task in sequence] == [20] * 3
    image = PICTURES[4]["pixel_values"]
    assert torch.equal(sequence[0].evaluation[4]["pixel_values"], image)
    quarter = torch.rot90(image.reshape(4, 4)).flatten()
    torch.testing.assert_close(sequence["rotated_90"].evaluation[4]["pixel_values"], quarter)
    assert_columns_are_samples(sequence[2].train)


def test_seeds_give_the_same_tasks_on_every_machine() -> None:
    data = numbered_arrays(np.arange(12) % 6)
    assert [task.classes for task in by_class(data, data, 2, seed=7)] == [(5, 2), (0, 4), (1, 3)]
    assert permuted(data, data, 2, seed=7)[1].train[0]["pixel_values"].tolist() == [2.0, 0.0, 3.0, 1.0]
    assert [numbers_in(task.train) for task in blurry(data, data, 2, 0.5, seed=7)] == [
        [0, 4, 7, 8, 9, 11],
        [1, 2, 3, 5, 6, 10],
    ]
