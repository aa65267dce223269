from typing import Any

import datasets
import numpy as np
import pytest
import torch
from torch.utils.data import Subset, TensorDataset

from replay.storage.labels import Labels, read_labels

LABELS = np.arange(10_000) % 7


class ByColumns:
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


class Held(list[str]):
    def __init__(self, **attributes: Any):
        super().__init__("abcdef")
        vars(self).update(attributes)

    def __getitem__(self, index: Any) -> Any:
        pytest.fail("a sample was read")


def table() -> datasets.Dataset:
    return datasets.Dataset.from_dict({"label": list(range(10, 16)), "text": list("abcdef"), "score": [0.5] * 6})


@pytest.mark.parametrize(
    "dataset",
    [
        table(),
        table().with_format("torch"),
        table().select([0, 0, 1, 2, 3, 4, 5]).select(range(1, 7)),
        table().cast_column("label", datasets.ClassLabel(num_classes=20)),
        table().with_transform(lambda batch: pytest.fail("whole samples were read")),
        Held(targets=torch.arange(10, 16)),
        Held(labels=np.arange(10, 16, dtype=np.uint8)),
        Held(label=tuple(range(10, 16))),
        Subset(Held(targets=torch.arange(9, 15)), [1, 2, 3, 4, 5]),
    ],
    ids=lambda value: type(value).__name__,
)
def test_labels_are_read_without_reading_samples(dataset: Any) -> None:
    labels = read_labels(dataset, np.array([4, 0, 0]))
    assert labels is not None
    assert labels.dtype == np.int64
    assert labels.tolist() == [14, 10, 10]


@pytest.mark.parametrize("kind", [np.asarray, torch.as_tensor, np.ndarray.tolist, lambda held: held.astype(np.uint8)])
@pytest.mark.parametrize(("column", "attribute", "named"), [("label", "labels", None), ("kind", "kind", "kind")])
def test_an_attribute_saves_reading_samples(kind: Any, column: str, attribute: str, named: str | None) -> None:
    data = ByColumns({column: LABELS}, **{attribute: kind(LABELS)})
    labels = Labels(data, named)
    for indices in (np.array([9_999, 0, 0, 5]), np.array([], dtype=np.int64), None):
        found = labels.read(indices)
        assert found is not None
        assert found.dtype == np.int64
        assert found.tolist() == LABELS[slice(None) if indices is None else indices].tolist()
    assert data.num_read == 8


@pytest.mark.parametrize(
    ("attributes", "column"),
    [
        ({"labels": 6 - LABELS}, None),  # the classes before a transform of theirs
        ({"targets": LABELS}, None),  # of another name
        ({"labels": LABELS}, "label"),
        *(({"label": own}, None) for own in (LABELS[:-1], LABELS / 1, LABELS[:, None], np.array(3), "01")),
        ({"label": [*LABELS[:9_998].tolist(), None, int(LABELS[-1])]}, None),
    ],
)
def test_the_column_counts(attributes: dict[str, Any], column: str | None) -> None:
    data = ByColumns({"label": LABELS, "x": np.zeros(10_000)}, **attributes)
    assert read_labels(data, None, column).tolist() == LABELS.tolist()
    assert data.num_read == 10_008
    assert data.most_at_once < 5_000  # whole samples are read for them
    for count in (0, 1):
        assert read_labels(ByColumns({"label": LABELS[:count]}, label=LABELS[:count])).tolist() == [0] * count


@pytest.mark.parametrize(
    ("dataset", "column"),
    [
        *((table(), name) for name in ("other", "text", "score")),
        (Held(targets=[1] * 6), "label"),
        (Held(targets=[1, 2]), None),
        (Held(targets=torch.zeros(6, 2, dtype=torch.int64)), None),
        (TensorDataset(torch.zeros(3)), None),
        *((ByColumns({"label": values}, label=LABELS), None) for values in (LABELS / 7, LABELS * np.nan)),
        (ByColumns({"label": LABELS[:, None]}, label=LABELS, targets=LABELS), "label"),
    ],
)
def test_where_there_are_no_labels_there_are_none(dataset: Any, column: str | None) -> None:
    assert read_labels(dataset, np.array([0, 1]), column) is None
