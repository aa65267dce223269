"""Digests of rows: equal for equal rows alone, wherever and however these are stored."""

import datetime
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pytest

from mixer.loading.row_digest import digest, row_digests

ROWS: dict[str, list[Any]] = {
    "whole": [0, 1, -1, None],
    "fraction": [0.0, 0.5, float("nan"), None],
    "text": ["", "a", "ä", None],
    "tokens": [[], [0], [0, 0], None],
    "gaps": [[None], [None, None], [0, None], [None, 0]],
    "texts": [["ab"], ["a", "b"], ["", "ab"], ["ab", ""]],
    "nested": [[[1], [2]], [[1, 2]], [[], [1, 2]], [[1, 2], []]],
    "object": [{"a": 1, "b": "x"}, {"a": 1, "b": None}, {"a": None, "b": "x"}, None],
    "turns": [[{"role": "u"}], [{"role": "u"}, {"role": "u"}], [], [{"role": None}]],
    "day": [datetime.date(2024, 1, day) for day in (1, 2, 3, 4)],
    "bytes": [b"", b"\x00", b"\x00\x00", None],
    "truth": [True, False, None, None],
}


def _digests(rows: datasets.Dataset) -> list[int]:
    return row_digests(rows, np.arange(len(rows))).tolist()


@pytest.mark.parametrize("column", ROWS)
def test_rows_are_alike_if_their_values_are(column: str) -> None:
    rows = datasets.Dataset.from_dict({column: ROWS[column]})
    found = _digests(rows)
    assert len(set(found)) == len({repr(value) for value in ROWS[column]})
    # The same rows in another order, in parts, beside others, and behind a mapping of indices.
    assert row_digests(rows, np.array([3, 1, 1])).tolist() == [found[3], found[1], found[1]]
    halves = [rows.select(range(2)), rows.select([2, 3])]
    assert _digests(datasets.concatenate_datasets(halves)) == found
    assert row_digests(rows.shuffle(seed=1), np.arange(4)).tolist() == [
        found[place] for place in rows.add_column("place", range(4)).shuffle(seed=1)["place"]
    ]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (pa.array([1, 2], pa.int32()), pa.array([1, 2], pa.int64())),
        (pa.array([0.5, -0.0], pa.float32()), pa.array([0.5, 0.0], pa.float64())),
        (pa.array(["a", "b"]), pa.array(["a", "b"], pa.large_string())),
        (pa.array([[1, 2], [3, 4]]), pa.array([[1, 2], [3, 4]], pa.list_(pa.int32(), 2))),
        (pa.array([[1, 2], [3, 4]]), pa.array([[0], [1, 2], [3, 4]], pa.large_list(pa.int16()))[1:]),
        (pa.array(["a", "b"]), pa.array(["a", "b"]).dictionary_encode()),
    ],
)
def test_types_that_hold_the_same_values_are_alike(one: pa.Array, other: pa.Array) -> None:
    tables = [pa.table({"x": one, "y": [1, 2]}), pa.table({"y": [1, 2], "x": other})]
    first, second = (_digests(datasets.Dataset(table)) for table in tables)
    assert first == second
    assert first != _digests(datasets.Dataset(tables[0].rename_columns(["z", "y"])))


def test_formats_and_transforms_do_not_count() -> None:
    rows = datasets.Dataset.from_dict({"tokens": [[1, 2], [3]]})
    assert _digests(rows.with_transform(lambda batch: 1 / 0)) == _digests(rows.with_format("torch")) == _digests(rows)
    # The same in every process and release: ranks compare them.
    assert _digests(rows) == [17776457597680894865, 486868297481333566]


def test_rows_of_other_data_sets_are_read() -> None:
    rows = [{"x": [1, 2]}, {"x": np.array([1, 2])}, {"x": [2, 1]}]
    found = row_digests(rows, np.arange(3)).tolist()
    assert found[0] == found[1] == digest({"x": (1, 2)}) != found[2]
