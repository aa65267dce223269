import json
import random
from itertools import count
from typing import Any

import datasets
import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from torch.utils.data import TensorDataset

from mixer.loading.reader import SampleError
from replay.storage.sources import Sources, addresses, fingerprint, split
from tests.refusals import refused
from tests.replay.buffers import Columns
from tests.replay.storage.test_labels import table


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
