"""Arguments as recipes and notebooks give them: what is of another kind or does not fit is refused by its name."""

import datetime
from collections.abc import Callable
from typing import Any

import datasets
import numpy as np
import pytest

from mixer.utils.errors import ErrorFacts, InvalidTypeError
from tasks.sequences import by_class, by_column, by_time, from_data_sets, permuted, rotated
from tests.refusals import refused
from tests.tasks.data import numbered_arrays, numbered_table, numbers_in

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
