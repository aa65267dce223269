"""Rows read from Arrow's memory are those of the data set, to the type."""

import pickle
from typing import Any

import numpy as np
import pytest
import torch
from datasets import ClassLabel, Dataset, Features, LargeList, List, Value, concatenate_datasets
from transformers import default_data_collator

from mixer.loading.arrow import ArrowRows
from mixer.loading.reader import StreamReader
from mixer.mixture.step_plan import StreamShare
from tests.mixer.loaders import assert_same

NUMBERS = ("int8", "int32", "int64", "uint16", "uint32", "float16", "float32", "float64")
FORMATS = (None, "numpy", "torch")


def numbers_of(kind: str, start: int = 0, num_rows: int = 12) -> Dataset:
    """Columns of every shape: a number, lists of one length and of several, some of them empty."""
    value, rows = Value(kind), np.arange(start, start + num_rows)
    columns = {
        "number": (value, rows),
        "even": (List(value), [[row, row + 1] for row in rows]),
        "ragged": (LargeList(value), [list(range(row % 4)) for row in rows]),
        "fixed": (List(value, length=3), [[row] * 3 for row in rows]),
        "label": (ClassLabel(num_classes=100), rows),
    }
    features = Features({name: feature for name, (feature, _) in columns.items()})
    return Dataset.from_dict({name: values for name, (_, values) in columns.items()}, features=features)


@pytest.mark.parametrize("how", FORMATS)
@pytest.mark.parametrize("kind", NUMBERS)
def test_rows_are_those_of_the_data_set(kind: str, how: str | None) -> None:
    whole = numbers_of(kind)
    in_chunks = concatenate_datasets([whole.select(range(5)), whole.select(range(5, 12))])
    for dataset in (whole, in_chunks, whole.select([7, 3, 3, 11, 0]), whole.select_columns(["even"])):
        formatted = dataset.with_format(how)
        for rows in (ArrowRows.of(formatted), pickle.loads(pickle.dumps(ArrowRows.of(formatted)))):  # noqa: S301
            indices = np.array([4, 0, 2, 2])
            views = rows.views(indices)
            found, expected = rows.samples(views), formatted.__getitems__(indices.tolist())
            assert_same(found, expected)
            assert [*map(list, found)] == [*map(list, expected)]  # the order of columns


@pytest.mark.parametrize("how", [None, "torch"])
@pytest.mark.parametrize("kind", NUMBERS)
def test_stacked_rows_are_those_of_the_default_collator(kind: str, how: str | None) -> None:
    parts = [numbers_of(kind, start).remove_columns("ragged").with_format(how) for start in (0, 20)]
    share = [StreamShare(number, range(2), np.array([3, 1])) for number in (0, 1)]
    columns = dict(StreamReader("ab", parts, [1, 2]).stack(share, allows_lists=True) or {})
    expected = default_data_collator([row for part in parts for row in part.__getitems__([3, 1])])
    assert_same({"labels": columns.pop("label"), **columns}, expected)
    assert (StreamReader("ab", parts, [1, 2]).stack(share, allows_lists=False) is None) == (how is None)


def test_rows_that_need_the_data_set_or_its_samples_are_left_to_them() -> None:
    def can_read(**columns: Any) -> bool:
        rows = ArrowRows.of(Dataset.from_dict(columns))
        return rows is not None and rows.views(np.array([0])) is not None

    assert can_read(x=[1, 2])
    for columns in (
        {"x": ["a"]},
        {"x": [True]},
        {"x": [[[1]]]},
        {"x": [1, None]},
        {"x": [[1, None]]},
        {"x": [[1], None]},
    ):
        assert not can_read(**columns)
    dataset = Dataset.from_dict({"x": [1, 2], "y": [[1], [2, 3]]})
    for other in (dataset.with_transform(dict), dataset.with_format("torch", dtype=torch.int8), [1]):
        assert ArrowRows.of(other) is None
    assert ArrowRows.of(dataset.with_format("torch", ["x"], output_all_columns=True)) is None
    reader = StreamReader(["a"], [dataset], [1])
    both, first = (StreamShare(0, range(n), np.arange(n)) for n in (2, 1))
    assert reader.stack([both], allows_lists=True) is None  # of different lengths
    assert reader.stack([first], allows_lists=True) is not None
    dataset.set_transform(lambda batch: {"z": batch["x"]})  # after the reader was made
    assert reader.stack([first], allows_lists=True) is None
    assert reader.read([both]) == [{"z": 1}, {"z": 2}]
