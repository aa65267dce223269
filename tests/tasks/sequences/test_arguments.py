"""Arguments as recipes and notebooks give them: what is of another kind is refused by its name."""

import datetime
import re
from collections.abc import Callable
from typing import Any

import datasets
import numpy as np
import pytest

from tasks.sequences import blurry, by_class, by_column, by_time, from_data_sets, permuted, rotated
from tests.tasks.data import numbered_arrays, numbered_table, numbers_in

DATA = numbered_arrays([0, 1, 2, 3])
TIMES = numbered_table([0] * 4, t=[1, 2, 3, 4])
REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "classes_per_task is text": (lambda: by_class(DATA, DATA, "2"), "by_class: classes_per_task must be .*, got '2'"),  # type: ignore[arg-type]
    "classes_per_task is a share": (lambda: by_class(DATA, DATA, 0.5), "classes_per_task must be a whole number"),  # type: ignore[arg-type]
    "groups of numbers": (lambda: by_class(DATA, DATA, groups=[0, 1, 2]), r"groups: .* such as \[0, 1\], got 0"),  # type: ignore[list-item]
    "groups of words": (lambda: by_class(DATA, DATA, groups=[["a"], [3]]), "groups must hold classes, .* got 'a'"),  # type: ignore[list-item]
    "groups is a number": (lambda: by_class(DATA, DATA, groups=3), "by_class: groups must be a list, .* got 3"),  # type: ignore[arg-type]
    "seed of classes": (lambda: by_class(DATA, DATA, 2, seed=-1), "by_class: seed must be .* 0 or more, got -1"),
    "no seed": (lambda: permuted(DATA, DATA, 2, seed=None), "permuted: seed must be a whole number, .* got None"),  # type: ignore[arg-type]
    "seed below 0": (lambda: permuted(DATA, DATA, 2, seed=-1), "permuted: seed must be .* 0 or more, got -1"),
    "num_tasks is text": (lambda: permuted(DATA, DATA, "2", seed=0), "permuted: num_tasks must be .*, got '2'"),  # type: ignore[arg-type]
    "no sample": (lambda: permuted(numbered_arrays([]), DATA, 2, seed=0), "permuted: train must have at least one sam"),
    "nothing to turn": (lambda: rotated(numbered_arrays([]), DATA, [0]), "rotated: train must have at least one sampl"),
    "nothing to evaluate": (lambda: permuted(DATA, numbered_arrays([]), 2, seed=0), "evaluation is empty"),
    "half a sample": (lambda: permuted(DATA, DATA, 2, seed=0, samples_per_task=1.5), "samples_per_task must be .* 1.5"),  # type: ignore[arg-type]
    "an angle": (lambda: rotated(DATA, DATA, 30), r"rotated: degrees must be a list, such as \[0, 30, 60\], got 30"),  # type: ignore[arg-type]
    "a word as angle": (lambda: rotated(DATA, DATA, ["a"]), r"rotated: degrees must hold finite numbers.*\['a'\]"),  # type: ignore[list-item]
    "no angle": (lambda: rotated(DATA, DATA, []), "rotated: degrees must hold"),
    "overlap is text": (lambda: blurry(DATA, DATA, 2, "a", 0), "blurry: overlap must be a share.* got 'a'"),  # type: ignore[arg-type]
    "blurry without seed": (lambda: blurry(DATA, DATA, 2, 0.1, None), "blurry: seed must be .* got None"),  # type: ignore[arg-type]
    "blurry tasks": (lambda: blurry(DATA, DATA, 1.5, 0.1, 0), "blurry: num_tasks must be a whole number"),  # type: ignore[arg-type]
    "a boundary": (lambda: by_time(TIMES, TIMES, "t", boundaries=3), "by_time: boundaries must be a list.* got 3"),  # type: ignore[arg-type]
    "a date": (
        lambda: by_time(TIMES, TIMES, "t", boundaries="2023"),
        "by_time: boundaries must be a list.*'2023'",
    ),
    "half a task": (lambda: by_time(TIMES, TIMES, "t", num_tasks=2.5), "by_time: num_tasks must be a whole.* got 2.5"),  # type: ignore[arg-type]
    "order is a number": (lambda: by_column(TIMES, TIMES, "t", order=3), "by_column: order must be a list.* got 3"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_of_another_kind_is_refused_by_its_name(name: str) -> None:
    build, message = REFUSED[name]
    with pytest.raises(ValueError, match=message):
        build()


def test_numbers_of_numpy_are_numbers() -> None:
    two = np.int64(2)
    assert len(by_class(DATA, DATA, two, seed=two)) == len(blurry(DATA, DATA, two, np.float32(0), two)) == 2
    assert len(permuted(DATA, DATA, two, two, samples_per_task=2 * two)) == 2
    assert len(by_class(DATA, DATA, groups=np.arange(4).reshape(2, 2))) == 2  # type: ignore[arg-type]
    assert rotated(DATA, DATA, np.array([0.0, 30.0])).names == ("rotated_0", "rotated_30")  # type: ignore[arg-type]


def test_angles_close_by_have_names_of_their_own() -> None:
    sequence = rotated(DATA, DATA, [10.0000001, 10.0000002, 12.5])
    assert sequence.names == ("rotated_10.0000001", "rotated_10.0000002", "rotated_12.5")


def test_a_pair_of_data_sets_may_be_a_list() -> None:
    assert len(from_data_sets({"a": [DATA, DATA]}, "class")) == 1
    with pytest.raises(TypeError, match=r"from_data_sets: data_sets must give .* by its name, .* got a list"):
        from_data_sets([(DATA, DATA)], "class")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"from_data_sets 'a': give a pair \(train, evaluation\), got list"):
        from_data_sets({"a": [DATA]}, "class")


def test_values_that_are_no_names_are_made_some() -> None:
    values = ["en/us", "en_us", "en/uk", " ", "", "a"]
    table = numbered_table([0] * 6, lang=values)
    sequence = by_column(table, table, "lang", order=values)
    assert sequence.names == ("en_us_", "en_us", "en_uk", "lang_empty", "lang_empty_", "a")
    assert [task.description for task in sequence] == [f"lang = {value}" for value in values]
    assert [numbers_in(task.train) for task in sequence] == [[number] for number in range(6)]


# ---- Moments of several kinds ----


def table_of(*moments: Any) -> datasets.Dataset:
    return numbered_table([0] * len(moments), t=list(moments))


NUMBERS, TEXT = table_of(*range(1, 13)), table_of(*map(str, range(1, 13)))
DAYS = [datetime.datetime(2020 + year, 1, 1) for year in range(4)]
DATES, DATES_AS_TEXT = table_of(*DAYS), table_of(*(day.isoformat() for day in DAYS))


@pytest.mark.parametrize(
    ("train", "evaluation", "boundaries", "told"),
    [
        (NUMBERS, NUMBERS, ["3"], "train has numbers, evaluation has numbers, boundaries has text"),
        (NUMBERS, NUMBERS, [1, "3"], "boundaries has numbers and text"),
        (NUMBERS, TEXT, [3], "train has numbers, evaluation has text"),
        (TEXT, NUMBERS, None, "train has text, evaluation has numbers"),
        (TEXT, TEXT, [3], "boundaries has numbers"),
        (DATES, DATES, [2021], "train has dates, evaluation has dates, boundaries has numbers"),
        (NUMBERS, DATES, [3], "evaluation has dates"),
        (NUMBERS, NUMBERS, [(3,)], "boundaries has values of type tuple"),
    ],
)
def test_moments_of_other_kinds_are_not_compared(train: Any, evaluation: Any, boundaries: Any, told: str) -> None:
    with pytest.raises(ValueError, match=f"moments of column 't' must be all numbers, or .*{re.escape(told)}.*cast"):
        by_time(train, evaluation, "t", boundaries=boundaries, num_tasks=2 if boundaries is None else None)


@pytest.mark.parametrize("train", [DATES, DATES_AS_TEXT, table_of(*(day.date() for day in DAYS))])
@pytest.mark.parametrize("evaluation", [DATES, DATES_AS_TEXT])
@pytest.mark.parametrize("boundary", [DAYS[2], DAYS[2].date(), np.datetime64("2022"), "2022-01-01", "2022-01-01T00:00"])
def test_dates_and_text_are_compared_as_dates(train: Any, evaluation: Any, boundary: Any) -> None:
    sequence = by_time(train, evaluation, "t", boundaries=[boundary])
    assert [numbers_in(task.train) for task in sequence] == [[0, 1], [2, 3]]
    assert [numbers_in(task.evaluation) for task in sequence] == [[0, 1], [2, 3]]
    shown = boundary if train is DATES_AS_TEXT is evaluation and isinstance(boundary, str) else "2022-01-01"
    assert sequence[1].description == f"{shown} <= t"  # all text stays what it is


def test_text_that_is_no_date_is_not_compared_with_dates() -> None:
    with pytest.raises(ValueError, match=r"compared as dates, but boundaries has text that is none: .* Write dates as"):
        by_time(DATES, DATES, "t", boundaries=["soon"])
    noon = by_time(table_of(*(day.date() for day in DAYS)), DATES, "t", boundaries=["2021-01-01T12:00"])
    assert [numbers_in(task.train) for task in noon] == [[0, 1], [2, 3]]


def test_numbers_of_several_types_are_compared() -> None:
    sequence = by_time(NUMBERS, table_of(*np.arange(1.0, 13.0)), "t", boundaries=[3.5, np.int64(6)])
    assert [len(task.train) for task in sequence] == [len(task.evaluation) for task in sequence] == [3, 2, 7]
