import json
import random
from itertools import count
from typing import Any

import datasets
import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from torch.utils.data import Subset, TensorDataset

from mixer.loading.reader import SampleError
from replay.storage.labels import Labels, read_labels
from replay.storage.sources import Sources, addresses, fingerprint, split
from tests.refusals import refused
from tests.replay.buffers import Columns

LABELS = np.arange(10_000) % 7


def table() -> datasets.Dataset:
    return datasets.Dataset.from_dict({"label": list(range(10, 16)), "text": list("abcdef"), "score": [0.5] * 6})


class Counting:
    def __init__(self, name: str, length: int):
        self.name, self.length, self.calls = name, length, []

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        return f"{self.name}{index}"

    def __getitems__(self, indices):
        self.calls.append(indices)
        return [self[index] for index in indices]


class Drawing(Counting):
    def __getitem__(self, index):
        return {"x": torch.rand(3), "y": random.random(), "index": index}


@given(st.integers(0, 2**22 - 1), st.lists(st.integers(0, 2**40 - 1)))
def test_an_address_is_taken_apart_into_what_it_was_made_of(source_id, indices):
    made = addresses(source_id, indices)
    assert made.dtype == np.int64
    assert (made >= 0).all()
    assert [part.tolist() for part in split(made)] == [[source_id] * len(indices), indices]
    for wrong in (2**40, -1):
        with refused("indices", found=wrong):
            addresses(source_id, [*indices, wrong])


def test_samples_and_columns_come_in_the_given_order_with_one_call_a_source():
    sources, data = Sources(), [Counting("a", 10), Counting("b", 10), Counting("c", 10)]
    assert [sources.add(dataset.name, dataset) for dataset in data] == [0, 1, 2]
    read = np.concatenate([addresses(*each) for each in ((1, [3]), (0, [9]), (1, [3]), (0, [0]), (1, [1]))])
    assert sources.read(read) == ["b3", "a9", "b3", "a0", "b1"]
    assert [dataset.calls for dataset in data] == [[[9, 0]], [[3, 3, 1]], []]
    assert sources.read(read[:0]) == []
    columns = Sources()
    for seed, name in enumerate("ab"):
        columns.add(name, Columns(10, seed))
    assert (columns.has_columns, sources.has_columns) == (True, False)
    samples = columns.read(read)
    for name, column in columns.read_columns(read).items():
        assert torch.equal(column, torch.stack([sample[name] for sample in samples]))


def test_a_name_stands_for_one_data_set_when_it_is_added_and_when_it_is_loaded():
    sources = Sources()
    named = (("a", table()), ("b", Columns(9, 0)), ("a", table()))
    assert [sources.add(name, data) for name, data in named] == [0, 1, 0]
    texts = table().map(lambda row: {"text": row["text"] * 2})
    few, turned = table().select(range(5)), table().select([1, 0, 2, 3, 4, 5])
    for changed in (texts, few, turned):
        before, after = Sources(), Sources()
        before.add("a", changed)
        after.load_state_dict(sources.state_dict())
        for call in (lambda own=changed: sources.add("a", own), lambda own=changed, to=after: to.add("a", own)):
            with refused("dataset", stream="a", found=len(changed)):
                call()
        with refused("dataset", stream="a"):
            before.load_state_dict(sources.state_dict())


@pytest.mark.parametrize(
    "make", [table, lambda: Drawing("", 20), lambda: Columns(9, 3), lambda: TensorDataset(torch.arange(9))]
)
def test_the_same_data_set_is_recognised_after_loading_and_no_random_number_is_used(make):
    torch.manual_seed(3)
    state = torch.get_rng_state()
    sources, again, later = Sources(), Sources(), Sources()
    for each in (sources, again):
        each.add("a", make())
    assert torch.equal(torch.get_rng_state(), state)
    state = json.loads(json.dumps(sources.state_dict()))
    again.load_state_dict(state)
    assert again.state_dict() == state
    later.load_state_dict(state)
    assert later.add("a", make()) == 0


def test_ids_are_those_that_were_saved_and_a_missing_source_matters_only_when_it_is_read():
    sources, again = Sources(), Sources()
    for name in "abc":
        sources.add(name, Counting(name, 4))
    for name in ("new", "c"):
        again.add(name, Counting(name, 4))
    again.load_state_dict(sources.state_dict())
    assert again.names == ("a", "b", "c", "new")
    assert again.read(np.array([*addresses(2, [1]), *addresses(3, [1])])) == ["c1", "new1"]
    for read in (again.read, again.read_columns, lambda numbers: again.labels(numbers, "label")):
        with refused("dataset", stream="b"):
            read(addresses(1, [0]))
    assert again.add("b", Counting("b", 4)) == 1
    assert again.read(addresses(1, [0])) == ["b0"]
    with refused("source_id", found=4):
        again.read(addresses(4, [0]))


@pytest.mark.parametrize("made", [count().__next__, object])
def test_samples_that_cannot_be_encoded_or_change_are_recognised_by_length(made: Any) -> None:
    sources = Sources()
    data = [type("Changing", (Counting,), {"__getitem__": lambda *_: made()})("a", length) for length in (5, 5, 6)]
    assert [sources.add("a", own) for own in data[:2]] == [0, 0]
    with refused("dataset", stream="a", found=6):
        sources.add("a", data[2])


def test_a_fingerprint_is_the_same_in_any_process():
    data = datasets.Dataset.from_dict({"a": list(range(99)), "b": ["x"] * 99})
    assert fingerprint(data) == "aadd08aa252dc4c4ece3a8b04dcfa88d"
    assert fingerprint(TensorDataset(torch.arange(30.0).reshape(10, 3))) == "7ed6e457cec3d81a18f2d013770ff9ce"


def test_a_sample_that_fails_and_a_data_set_that_gives_too_few_are_named():
    class Short(Counting):
        def __getitems__(self, indices):
            return indices[1:] if self.name else [][indices[0]]

    sources = Sources()
    for name, inner in (("pictures", ""), ("short", "a")):
        sources.add(name, Short(inner, 4))
    with pytest.raises(SampleError):
        sources.read(addresses(0, [0, 3]))
    with pytest.raises(SampleError, match="'short': __getitems__ returned 1 samples for 2 indices"):
        sources.read(addresses(1, [0, 1]))


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
    for size in (0, 1):
        assert read_labels(ByColumns({"label": LABELS[:size]}, label=LABELS[:size])).tolist() == [0] * size


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
