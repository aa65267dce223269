"""Sequences of tasks, and arguments as recipes and notebooks give them."""

import datetime
from collections.abc import Callable
from typing import Any

import datasets
import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from mixer.utils.errors import ErrorFacts, InvalidTypeError
from tasks.sequences import blurry, by_class, by_column, by_time, from_data_sets, permuted, rotated
from tasks.sources import Arrays, labels_of
from tasks.task import TaskSequence
from tests.refusals import refused
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


DATA, NOTHING, FEW, MORE = (numbered_arrays(labels) for labels in ([0, 1, 2, 3], [], [0, 1], [0, 1, 4]))
TABLE = numbered_table([0] * 4, t=[1, 2, 3, 4])
SPOKEN = numbered_table([0, 1], language=["de", "en"], score=[1.0, None])
OFTEN = numbered_table([0] * 4, t=[1, 1, 1, 2])
DAYS = [datetime.datetime(2020 + year, 1, 1) for year in range(4)]
WORDS = numbered_table(["yes", "no"])
ROWS = WORDS.to_iterable_dataset()
TWELVE = numbered_arrays([0, 1], 12)

# What is built, of what and with what, and what it is about.
REFUSED: list[tuple[Callable[..., Any], Any, dict[str, Any], str]] = [
    (by_class, DATA, {}, "groups"),
    (by_class, DATA, {"classes_per_task": 0}, "by_class: classes_per_task"),
    (by_class, DATA, {"groups": [[0, 1], [2]]}, "groups"),
    (by_class, DATA, {"groups": [[0, 1], [2, 3, 1]]}, "groups"),
    (by_class, DATA, {"groups": [[0, 1], [2, 3, 7]]}, "groups"),
    (by_class, DATA, {"groups": [[0, 1, 2, 3]], "seed": 1}, "by_class: groups"),
    (by_class, DATA, {"classes_per_task": 3, "scenario": "domain"}, "scenario"),
    (by_class, (FEW, MORE), {"classes_per_task": 1}, "evaluation"),
    (by_class, (MORE, FEW), {"classes_per_task": 1}, "evaluation"),
    (by_class, ROWS, {"classes_per_task": 1}, "train"),
    (by_class, WORDS, {"classes_per_task": 1}, "train"),
    (by_column, TABLE, {"column": "t", "order": [1, 2]}, "order"),
    (by_column, SPOKEN, {"column": "lang"}, "train"),
    (by_column, DATA, {"column": "lang"}, "train"),
    (by_column, SPOKEN, {"column": "score"}, "train"),
    (by_column, SPOKEN, {"column": "language"}, "scenario"),
    (by_time, OFTEN, {"num_tasks": 3}, "by_time: boundaries"),
    (by_time, OFTEN, {"boundaries": [2, 1]}, "by_time: boundaries"),
    (by_time, OFTEN, {}, "boundaries"),
    (by_time, numbered_table([0, 0], t=[DAYS[0], None]), {"num_tasks": 1}, "train"),
    (permuted, (NOTHING, DATA), {"num_tasks": 2, "seed": 0}, "permuted: train"),
    (permuted, DATA, {"num_tasks": 2, "seed": 0, "samples_per_task": 5}, "samples_per_task"),
    (permuted, TABLE, {"num_tasks": 2, "seed": 0}, "permuted: train"),
    (rotated, DATA, {"degrees": 30}, "rotated: degrees"),
    (rotated, DATA, {"degrees": ["a"]}, "degrees"),
    (rotated, TWELVE, {"degrees": [30]}, "size"),
]


@pytest.mark.parametrize(("build", "data", "options", "option"), REFUSED)
def test_what_does_not_fit_is_refused_by_its_name(build, data, options, option) -> None:
    both = data if isinstance(data, tuple) else (data, data)
    with refused(option, ErrorFacts):
        build(*both, **{**({"column": "t"} if build is by_time else {}), **options})


def test_a_pair_of_data_sets_may_be_a_list() -> None:
    sequence = from_data_sets({"a": [DATA, DATA], "b": (TABLE, TABLE)}, "free")  # type: ignore[dict-item]
    assert (sequence.names, sequence[1].train) == (("a", "b"), TABLE)
    with refused("data_sets", InvalidTypeError):
        from_data_sets([(DATA, DATA)], "class")  # type: ignore[arg-type]
    with refused("data_sets", InvalidTypeError):
        from_data_sets({"a": [DATA]}, "class")  # type: ignore[dict-item]


def test_values_that_are_no_names_are_made_some() -> None:
    values = ["en/us", "en_us", "en/uk", " ", "", "a"]
    table = numbered_table([0] * 6, lang=values)
    sequence = by_column(table, table, "lang", order=values)
    assert sequence.names == ("en_us_", "en_us", "en_uk", "lang_empty", "lang_empty_", "a")
    assert [task.description for task in sequence] == [f"lang = {value}" for value in values]
    assert [numbers_in(task.train) for task in sequence] == [[number] for number in range(6)]
    assert rotated(DATA, DATA, [10.0000001, 12.5]).names == ("rotated_10.0000001", "rotated_12.5")


def table_of(*moments: Any) -> datasets.Dataset:
    return numbered_table([0] * len(moments), t=list(moments))


NUMBERS, TEXT = table_of(*range(1, 13)), table_of(*map(str, range(1, 13)))
DATES, DATES_AS_TEXT = table_of(*DAYS), table_of(*(day.isoformat() for day in DAYS))
SHORT_DATES = table_of(*(day.date() for day in DAYS))


@pytest.mark.parametrize(
    ("train", "evaluation", "boundaries"),
    [(NUMBERS, NUMBERS, ["3"]), (NUMBERS, TEXT, None), (DATES, DATES, [2021]), (NUMBERS, NUMBERS, [(3,)])],
)
def test_moments_of_other_kinds_are_not_compared(train: Any, evaluation: Any, boundaries: Any) -> None:
    with refused("column"):
        by_time(train, evaluation, "t", boundaries=boundaries, num_tasks=2 if boundaries is None else None)


@pytest.mark.parametrize("boundary", [DAYS[2], DAYS[2].date(), np.datetime64("2022"), "2022-01-01"])
@pytest.mark.parametrize(
    ("train", "evaluation"), [(DATES, DATES_AS_TEXT), (DATES_AS_TEXT, DATES_AS_TEXT), (SHORT_DATES, DATES)]
)
def test_dates_and_text_are_compared_as_dates(train: Any, evaluation: Any, boundary: Any) -> None:
    sequence = by_time(train, evaluation, "t", boundaries=[boundary])
    assert [numbers_in(task.train) for task in sequence] == [[0, 1], [2, 3]]
    assert [numbers_in(task.evaluation) for task in sequence] == [[0, 1], [2, 3]]
    shown = boundary if train is DATES_AS_TEXT is evaluation and isinstance(boundary, str) else "2022-01-01"
    assert sequence[1].description == f"{shown} <= t"  # all text stays what it is


def test_text_that_is_no_date_is_not_compared_with_dates() -> None:
    with refused("column"):
        by_time(DATES, DATES, "t", boundaries=["soon"])
    noon = by_time(SHORT_DATES, DATES, "t", boundaries=["2021-01-01T12:00"])
    assert [numbers_in(task.train) for task in noon] == [[0, 1], [2, 3]]
    assert len(by_time(TEXT, TEXT, "t", boundaries=[])) == 1
