"""References find their samples, and say so when these are others or gone."""

import json
import random
import subprocess
import sys

import datasets
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import Subset, TensorDataset

from mixer.loading.reader import SampleError
from replay.storage.sources import Sources, addresses, split


class Counting:
    """A data set that notes how it is read."""

    def __init__(self, name: str, length: int):
        self.name, self.length, self.calls = name, length, []

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        return f"{self.name}{index}"

    def __getitems__(self, indices):
        self.calls.append(indices)
        return [self[index] for index in indices]


class Columns:
    """A data set that is read by columns."""

    def __init__(self, start: int):
        self.start = start

    def __len__(self):
        return 50

    def __getitem__(self, index):
        return {name: column[0] for name, column in self.read_columns(np.array([index])).items()}

    def read_columns(self, indices):
        whole = torch.from_numpy(indices) + self.start
        return {"x": torch.stack([whole, whole], dim=1), "label": whole % 7}


class Drawing:
    """A data set whose samples are drawn at random when they are read."""

    def __len__(self):
        return 20

    def __getitem__(self, index):
        return {"x": torch.rand(3), "y": random.random(), "index": index}


@given(st.integers(0, 2**22 - 1), st.lists(st.integers(0, 2**40 - 1)))
def test_an_address_is_taken_apart_into_what_it_was_made_of(source_id, indices):
    made = addresses(source_id, indices)
    assert made.dtype == np.int64
    assert (made >= 0).all()
    ids, back = split(made)
    assert ids.tolist() == [source_id] * len(indices)
    assert back.tolist() == indices


@pytest.mark.parametrize(("source_id", "index"), [(2**22, 0), (-1, 0), (0, 2**40), (0, -1)])
def test_an_address_beyond_its_range_is_refused(source_id, index):
    with pytest.raises(ValueError, match=r"(has|have) to be in"):
        addresses(source_id, [0, index])


def test_samples_come_in_the_given_order_with_one_call_a_source():
    sources, data = Sources(), [Counting("a", 10), Counting("b", 10), Counting("c", 10)]
    assert [sources.add(dataset.name, dataset) for dataset in data] == [0, 1, 2]
    wanted = [(1, 3), (0, 9), (1, 3), (0, 0), (1, 1)]
    read = np.concatenate([addresses(source_id, [index]) for source_id, index in wanted])
    assert sources.read(read) == ["b3", "a9", "b3", "a0", "b1"]
    assert [dataset.calls for dataset in data] == [[[9, 0]], [[3, 3, 1]], []]
    assert sources.read(np.array([], dtype=np.int64)) == []


def test_columns_come_in_the_given_order():
    sources = Sources()
    sources.add("a", Columns(0))
    sources.add("b", Columns(100))
    assert sources.has_columns
    read = np.concatenate([addresses(1, [3, 4]), addresses(0, [9]), addresses(1, [3])])
    columns = sources.read_columns(read)
    assert columns["x"].tolist() == [[103, 103], [104, 104], [9, 9], [103, 103]]
    samples = sources.read(read)
    for name, column in columns.items():
        assert torch.equal(column, torch.stack([sample[name] for sample in samples]))
    sources.add("c", Counting("c", 3))
    assert not sources.has_columns


class WithAttribute(Counting):
    def __init__(self, attribute, values):
        super().__init__("", 6)
        setattr(self, attribute, values)


def _table():
    return datasets.Dataset.from_dict({"label": list(range(10, 16)), "text": list("abcdef"), "score": [0.5] * 6})


@pytest.mark.parametrize(
    "dataset",
    [
        _table(),
        _table().with_format("torch"),
        _table().select([0, 0, 1, 2, 3, 4, 5]).select(range(1, 7)),
        _table().cast_column("label", datasets.ClassLabel(num_classes=20)),
        _table().with_transform(lambda batch: pytest.fail("whole samples were read")),
        WithAttribute("targets", torch.arange(10, 16)),
        WithAttribute("labels", np.arange(10, 16, dtype=np.uint8)),
        WithAttribute("targets", list(range(10, 16))),
        WithAttribute("label", tuple(range(10, 16))),
        Subset(WithAttribute("targets", torch.arange(9, 15)), [1, 2, 3, 4, 5]),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_labels_are_read_without_reading_samples(dataset):
    from replay.storage.labels import read_labels

    labels = read_labels(dataset, np.array([4, 0, 0]))
    assert labels.dtype == np.int64
    assert labels.tolist() == [14, 10, 10]


def test_labels_of_several_sources_come_in_order():
    sources = Sources()
    sources.add("table", _table())
    sources.add("columns", Columns(0))
    read = np.concatenate([addresses(1, [8]), addresses(0, [5, 1])])
    assert sources.labels(read, "label").tolist() == [1, 15, 11]
    sources.add("none", Counting("a", 3))
    assert sources.labels(np.concatenate([read, addresses(2, [0])]), "label") is None


@pytest.mark.parametrize(
    ("dataset", "column"),
    [
        (_table(), "other"),
        (_table(), "text"),
        (_table(), "score"),
        (WithAttribute("targets", [1] * 6), "label"),
        (WithAttribute("targets", [1, 2]), None),
        (WithAttribute("targets", torch.zeros(6, 2, dtype=torch.int64)), None),
        (TensorDataset(torch.zeros(3)), None),
    ],
)
def test_where_there_are_no_labels_there_are_none(dataset, column):
    sources = Sources()
    sources.add("a", dataset)
    assert sources.labels(addresses(0, [0, 1]), column) is None


def test_a_name_stands_for_one_data_set():
    sources = Sources()
    assert sources.add("a", _table()) == 0
    assert sources.add("b", Columns(0)) == 1
    assert sources.add("a", _table()) == 0
    with pytest.raises(ValueError, match=r"'a' has changed .* some of its samples"):
        sources.add("a", _table().map(lambda row: {"text": row["text"] * 2}))
    with pytest.raises(ValueError, match=r"'a' has changed .* it had 6 samples and has 5"):
        sources.add("a", _table().select(range(5)))


@pytest.mark.parametrize("make", [_table, Drawing, lambda: Columns(3), lambda: TensorDataset(torch.arange(9))])
def test_the_same_data_set_is_recognised_after_loading(make):
    sources = Sources()
    sources.add("a", make())
    again = Sources()
    again.add("a", make())
    again.load_state_dict(json.loads(json.dumps(sources.state_dict())))
    assert again.state_dict() == sources.state_dict()
    later = Sources()
    later.load_state_dict(sources.state_dict())
    assert later.add("a", make()) == 0


def test_reading_for_a_fingerprint_leaves_the_random_state_alone():
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    Sources().add("a", Drawing())
    assert torch.equal(torch.rand(1), expected)


@pytest.mark.parametrize("is_added_before", [True, False])
@pytest.mark.parametrize("changed", [_table().select(range(5)), _table().select([1, 0, 2, 3, 4, 5])], ids=str)
def test_a_changed_data_set_is_named_on_loading(changed, is_added_before):
    sources, again = Sources(), Sources()
    sources.add("the table", _table())
    if is_added_before:
        again.add("the table", changed)
        with pytest.raises(ValueError, match="Source 'the table' has changed"):
            again.load_state_dict(sources.state_dict())
    else:
        again.load_state_dict(sources.state_dict())
        with pytest.raises(ValueError, match="Source 'the table' has changed"):
            again.add("the table", changed)


def test_ids_are_those_that_were_saved_and_a_missing_source_matters_only_when_it_is_read():
    sources = Sources()
    for name in "abc":
        sources.add(name, Counting(name, 4))
    again = Sources()
    again.add("new", Counting("new", 4))
    again.add("c", Counting("c", 4))
    again.load_state_dict(sources.state_dict())
    assert again.names == ("a", "b", "c", "new")
    assert again.read(addresses(2, [1])) == ["c1"]
    assert again.read(addresses(3, [1])) == ["new1"]
    for read in (again.read, again.read_columns, lambda numbers: again.labels(numbers, "label")):
        with pytest.raises(ValueError, match=r"samples of 'b'.* remember"):
            read(addresses(1, [0]))
    assert again.add("b", Counting("b", 4)) == 1
    assert again.read(addresses(1, [0])) == ["b0"]
    with pytest.raises(ValueError, match="source 4"):
        again.read(addresses(4, [0]))


def test_samples_that_cannot_be_encoded_or_change_are_recognised_by_length():
    counter = iter(range(10**6))

    class Changing(Counting):
        def __getitem__(self, index):
            return next(counter)

    class Objects(Counting):
        def __getitem__(self, index):
            return object()

    for make in (Changing, Objects):
        sources = Sources()
        sources.add("a", make("a", 5))
        assert sources.add("a", make("a", 5)) == 0
        with pytest.raises(ValueError, match="5 samples and has 6"):
            sources.add("a", make("a", 6))
        assert sources.read(addresses(0, [1]))


_FINGERPRINTS = """
import datasets, torch
from torch.utils.data import TensorDataset
from replay.storage.sources import fingerprint
table = datasets.Dataset.from_dict({"a": list(range(99)), "b": ["x"] * 99})
found = [fingerprint(table), fingerprint(TensorDataset(torch.arange(30.0).reshape(10, 3)))]
"""


def test_a_fingerprint_is_the_same_in_another_process():
    here: dict[str, list[str]] = {}
    exec(_FINGERPRINTS, here)  # noqa: S102
    code = f"{_FINGERPRINTS}\nprint(*found)"
    there = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    assert there.stdout.split() == here["found"]
    assert len(set(here["found"])) == 2


def test_data_sets_can_be_replaced_by_ones_with_fewer_columns():
    sources = Sources()
    sources.add("a", Counting("a", 6))
    sources.add("b", _table())
    fewer = sources.replaced({"b": _table().remove_columns("text")})
    assert fewer.state_dict() == sources.state_dict()
    assert fewer.read(addresses(1, [2])) == [{"label": 12, "score": 0.5}]
    assert sources.read(addresses(1, [2]))[0]["text"] == "c"
    with pytest.raises(ValueError, match="'b' has 6 samples, what replaces it 5"):
        sources.replaced({"b": _table().select(range(5))})


def test_a_sample_that_fails_is_named():
    class Failing(Counting):
        def __getitem__(self, index):
            if index == 3:
                raise OSError("no such picture")
            return index

    sources = Sources()
    sources.add("pictures", Failing("", 3))
    with pytest.raises(SampleError, match=r"Source 'pictures': one of the samples \[0, 3\] .* no such picture"):
        sources.read(addresses(0, [0, 3]))


def test_a_data_set_that_gives_too_few_samples_is_named():
    class Short(Counting):
        def __getitems__(self, indices):
            return indices[1:]

    sources = Sources()
    sources.add("short", Short("", 4))
    with pytest.raises(SampleError, match="'short': __getitems__ returned 1 samples for 2 indices"):
        sources.read(addresses(0, [0, 1]))
