"""Arguments as recipes and notebooks give them: what is of another kind or does not fit is refused by its name."""

import datetime
import re
from collections.abc import Callable
from typing import Any

import datasets
import numpy as np
import pytest

from tasks.sequences import blurry, by_class, by_column, by_time, from_data_sets, permuted, rotated
from tests.tasks.data import numbered_arrays, numbered_table, numbers_in

DATA, NOTHING, FEW, MORE = (numbered_arrays(labels) for labels in ([0, 1, 2, 3], [], [0, 1], [0, 1, 4]))
TABLE = numbered_table([0] * 4, t=[1, 2, 3, 4])
SPOKEN = numbered_table([0, 1], language=["de", "en"], score=[1.0, None])
OFTEN = numbered_table([0] * 4, t=[1, 1, 1, 2])
DAYS = [datetime.datetime(2020 + year, 1, 1) for year in range(4)]
WORDS = numbered_table(["yes", "no"])
ROWS = WORDS.to_iterable_dataset()
TWELVE = numbered_arrays([0, 1], 12)

# What is built, of what and with what, and what is said.
REFUSED: list[tuple[Callable[..., Any], Any, dict[str, Any], str]] = [
    (by_class, DATA, {}, "give classes_per_task or groups, one of them, got None and None"),
    (by_class, DATA, {"classes_per_task": 0}, "between 1 and the 4 classes"),
    (by_class, DATA, {"groups": [[0, 1], [2]]}, r"groups leave out the classes \[3\]"),
    (by_class, DATA, {"groups": [[0, 1], [2, 3, 1]]}, r"groups name more than once \[1\]"),
    (by_class, DATA, {"groups": [[0, 1], [2, 3, 7]]}, r"groups name classes without samples \[7\]"),
    (by_class, DATA, {"groups": [[0, 1, 2, 3]], "seed": 1}, "groups have an order already"),
    (by_class, DATA, {"classes_per_task": 3, "scenario": "domain"}, "'task_1' .* 'task_2' .* scenario='class'"),
    (by_class, (FEW, MORE), {"classes_per_task": 1}, r"has samples of class \[4\], of which train has none"),
    (by_class, (MORE, FEW), {"classes_per_task": 1}, "Task 'task_3': evaluation is empty"),
    (by_class, ROWS, {"classes_per_task": 1}, "train must be a data set with __len__ and __getitem__, got a Iterable"),
    (by_class, WORDS, {"classes_per_task": 1}, "train: a Dataset without classes.*number classes that are words"),
    (by_column, TABLE, {"column": "t", "order": [1, 2]}, r"each value of 't' once, \[1, 2, 3, 4\], got \[1, 2\]"),
    (by_column, SPOKEN, {"column": "lang"}, r"train: there is no column 'lang' .* its columns are \['number'"),
    (by_column, DATA, {"column": "lang"}, "train: there is no column 'lang' .* in Arrays it would be an attribute"),
    (by_column, SPOKEN, {"column": "score"}, "train: 1 samples have no 'score'"),
    (by_column, SPOKEN, {"column": "language"}, r"scenario='domain' needs the same .* 'de' \[0\], 'en' \[1\]"),
    (by_time, OFTEN, {"num_tasks": 3}, "Too few different moments for so many tasks: lower num_tasks"),
    (by_time, OFTEN, {"boundaries": [2, 1]}, r"boundaries must ascend, got \[2, 1\]"),
    (by_time, OFTEN, {}, "give boundaries or num_tasks, one of them"),
    (by_time, numbered_table([0, 0], t=[DAYS[0], None]), {"num_tasks": 1}, "train: 1 samples have no 't'"),
    (permuted, (NOTHING, DATA), {"num_tasks": 2, "seed": 0}, "permuted: train must have at least one sample"),
    (permuted, DATA, {"num_tasks": 2, "seed": 0, "samples_per_task": 5}, "between 1 and the 4 there are, got 5"),
    (permuted, TABLE, {"num_tasks": 2, "seed": 0}, r"put them into memory, tasks\.sources\.Arrays"),
    (rotated, DATA, {"degrees": 30}, r"rotated: degrees must be a list, such as \[0, 30, 60\], got 30"),
    (rotated, DATA, {"degrees": ["a"]}, r"rotated: degrees must hold finite numbers.*\['a'\]"),
    (rotated, TWELVE, {"degrees": [30]}, r"12 pixels are no square; say size=\(height, width\)"),
    (blurry, DATA, {"num_tasks": 2, "overlap": 1.0, "seed": 0}, r"overlap must be in \[0, 1\), got 1\.0"),
]


@pytest.mark.parametrize(("build", "data", "options", "match"), REFUSED)
def test_what_does_not_fit_is_refused_by_its_name(build, data, options, match) -> None:
    both = data if isinstance(data, tuple) else (data, data)
    with pytest.raises((ValueError, TypeError), match=match):
        build(*both, **{**({"column": "t"} if build is by_time else {}), **options})


def test_a_pair_of_data_sets_may_be_a_list() -> None:
    sequence = from_data_sets({"a": [DATA, DATA], "b": (TABLE, TABLE)}, "free")  # type: ignore[dict-item]
    assert (sequence.names, sequence[1].train) == (("a", "b"), TABLE)
    with pytest.raises(TypeError, match=r"from_data_sets: data_sets must give .* by its name, .* got a list"):
        from_data_sets([(DATA, DATA)], "class")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"from_data_sets 'a': give a pair \(train, evaluation\), got list"):
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
    ("train", "evaluation", "boundaries", "told"),
    [
        (NUMBERS, NUMBERS, ["3"], "train has numbers, evaluation has numbers, boundaries has text"),
        (NUMBERS, TEXT, None, "train has numbers, evaluation has text"),
        (DATES, DATES, [2021], "train has dates, evaluation has dates, boundaries has numbers"),
        (NUMBERS, NUMBERS, [(3,)], "boundaries has values of type tuple"),
    ],
)
def test_moments_of_other_kinds_are_not_compared(train: Any, evaluation: Any, boundaries: Any, told: str) -> None:
    with pytest.raises(ValueError, match=f"moments of column 't' must be all numbers, or .*{re.escape(told)}.*cast"):
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
    with pytest.raises(ValueError, match=r"compared as dates, but boundaries has text that is none: .* Write dates as"):
        by_time(DATES, DATES, "t", boundaries=["soon"])
    noon = by_time(SHORT_DATES, DATES, "t", boundaries=["2021-01-01T12:00"])
    assert [numbers_in(task.train) for task in noon] == [[0, 1], [2, 3]]
    assert len(by_time(TEXT, TEXT, "t", boundaries=[])) == 1
