"""Labels of data sets that are read by columns come from an attribute where that is the same."""

from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Subset

from replay.storage.labels import Labels, read_labels
from replay.storage.sources import Sources, addresses

LABELS = np.arange(10_000) % 7


class ByColumns:
    """A data set of columns and attributes that counts the rows that are read."""

    def __init__(self, columns: dict[str, Any], **attributes: Any):
        self.columns = {name: torch.as_tensor(values) for name, values in columns.items()}
        self.num_read, self.most_at_once = 0, 0
        vars(self).update(attributes)

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {name: values[index] for name, values in self.columns.items()}

    def read_columns(self, indices: np.ndarray) -> dict[str, torch.Tensor]:
        self.num_read += len(indices)
        self.most_at_once = max(self.most_at_once, len(indices))
        return {name: values[torch.from_numpy(indices)] for name, values in self.columns.items()}


@pytest.mark.parametrize("kind", [np.asarray, torch.as_tensor, np.ndarray.tolist, lambda held: held.astype(np.uint8)])
@pytest.mark.parametrize(
    ("column", "attribute", "named"),
    [("label", "label", None), ("labels", "labels", None), ("label", "labels", None), ("kind", "kind", "kind")],
)
def test_samples_are_not_read_where_an_attribute_is_the_same(
    kind: Any, column: str, attribute: str, named: str | None
) -> None:
    data = ByColumns({column: LABELS}, **{attribute: kind(LABELS)})
    labels = Labels(data, named)
    for indices in (np.array([9_999, 0, 0, 5]), np.array([], dtype=np.int64), None):
        found = labels.read(indices)
        assert found is not None
        assert found.dtype == np.int64
        assert found.tolist() == LABELS[slice(None) if indices is None else indices].tolist()
    assert data.num_read == 8


def test_a_source_compares_once() -> None:
    sources, data = Sources(), ByColumns({"label": LABELS}, labels=LABELS)
    sources.add("a", data)
    for _ in range(3):
        assert sources.labels(addresses(0, [3, 1])).tolist() == [3, 1]
    assert data.num_read == 8


@pytest.mark.parametrize(
    ("attributes", "column"),
    [
        ({"labels": 6 - LABELS}, None),  # the classes before a transform of theirs
        ({"targets": LABELS + 1}, None),
        ({"targets": LABELS}, None),  # of another name
        ({"labels": LABELS}, "label"),
        ({"label": LABELS[:-1]}, None),
        ({"label": LABELS.astype(float)}, None),
        ({"label": LABELS[:, None]}, None),
        ({"label": np.array(3)}, None),
        ({"label": "0123"}, None),
        ({"label": [*LABELS[:9_998].tolist(), None, int(LABELS[-1])]}, None),
    ],
)
def test_the_column_counts(attributes: dict[str, Any], column: str | None) -> None:
    data = ByColumns({"label": LABELS, "x": np.zeros(10_000)}, **attributes)
    assert read_labels(data, None, column).tolist() == LABELS.tolist()
    assert data.num_read == 10_008
    assert data.most_at_once < 5_000  # whole samples are read for them


def test_an_attribute_is_that_of_its_own_column() -> None:
    data = ByColumns({"label": LABELS, "labels": 6 - LABELS}, labels=6 - LABELS)
    assert read_labels(data).tolist() == LABELS.tolist()
    same_at_first = ByColumns({"label": LABELS, "labels": LABELS}, labels=LABELS)
    read_labels(same_at_first)
    assert same_at_first.num_read == 10_008
    scored = ByColumns({"label": LABELS / 7, "labels": LABELS}, label=LABELS / 7, labels=LABELS)
    assert read_labels(scored).tolist() == LABELS.tolist()
    assert scored.num_read == 8


@pytest.mark.parametrize("values", [LABELS / 7, np.full(10_000, np.nan), LABELS[:, None]])
def test_a_column_without_whole_numbers_is_no_label_whatever_an_attribute_says(values: np.ndarray) -> None:
    data = ByColumns({"label": values}, label=LABELS, labels=LABELS, targets=LABELS)
    assert read_labels(data) is None
    assert read_labels(data, np.array([1]), "label") is None


def test_without_a_column_the_attribute_is_taken_as_it_is() -> None:
    data = ByColumns({"x": np.zeros(10_000)}, targets=LABELS)
    assert read_labels(data, np.array([8, 1])).tolist() == [1, 1]
    assert read_labels(data, np.array([8, 1]), "label") is None
    assert read_labels(ByColumns({"label": LABELS[:1]}, label=LABELS[:1])).tolist() == [0]
    assert read_labels(ByColumns({"label": LABELS[:0]}, label=LABELS[:0])).tolist() == []


@pytest.mark.parametrize("kind", [list, tuple, np.asarray, torch.as_tensor])
def test_a_part_of_it(kind: Any) -> None:
    data = ByColumns({"label": LABELS}, labels=LABELS)
    part = Subset(Subset(data, range(0, 10_000, 2)), kind([4, 3, 0]))
    assert read_labels(part).tolist() == [LABELS[8], LABELS[6], LABELS[0]]
    assert read_labels(part, np.array([1])).tolist() == [LABELS[6]]
    assert data.num_read == 16
