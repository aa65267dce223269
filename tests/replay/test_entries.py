"""What a buffer knows of its entries is the same in memory and on disk, and takes no memory there."""

import copy
import errno
import os
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from replay.memory.entries import Entries

COLUMNS = ("address", "row", "number", "task", "label")
CAPACITY = 5_000


def put(entries: Entries, slots: Any, start: int) -> None:
    values = {name: start * 7 + place + np.arange(len(slots)) for place, name in enumerate(COLUMNS)}
    entries.put(np.asarray(slots, dtype=np.int64), **{**values, "task": start})


def table(entries: Entries) -> list[tuple[int, ...]]:
    return list(zip(*(entries[name].tolist() for name in COLUMNS), strict=True))


CALLS = st.one_of(
    st.tuples(st.just("add"), st.integers(0, 2_000)),
    st.tuples(st.just("replace"), st.lists(st.integers(0, CAPACITY), unique=True, max_size=5)),
    st.tuples(st.just("remove"), st.integers(0, CAPACITY)),
    st.tuples(st.just("reload"), st.integers(0, CAPACITY)),
)


def call(entries: Entries, kind: str, argument: Any, start: int, folder: Path | None) -> Entries:
    if kind == "add":
        put(entries, np.arange(entries.size, min(CAPACITY, entries.size + argument)), start)
    elif kind == "replace":
        put(entries, [slot for slot in argument if slot < entries.size], start)
    elif kind == "remove" and entries.size:
        entries.remove(argument % entries.size)
    elif kind == "reload":
        state = entries.state_dict()
        if argument % 2:
            entries = Entries(CAPACITY, folder)
        entries.load_state_dict(state)
    return entries


@given(st.lists(CALLS, max_size=15))
def test_on_disk_and_in_memory_they_are_what_a_list_would_be(calls):
    with TemporaryDirectory() as name:
        folder = Path(name) / "rows"
        on_disk, in_memory, model = Entries(CAPACITY, folder), Entries(CAPACITY), []
        for start, (kind, argument) in enumerate(calls):
            in_memory = call(in_memory, kind, argument, start, None)
            on_disk = call(on_disk, kind, argument, start, folder)
            for column in COLUMNS:
                np.testing.assert_array_equal(on_disk[column], in_memory[column], strict=True)
            if kind == "remove" and model:
                model[argument % len(model)] = model[-1]
                model.pop()
                assert table(on_disk) == model
            model = table(on_disk)
        assert not folder.exists() or not list(folder.iterdir())  # a killed process leaves no file, then


def test_states_and_copies_stand_by_themselves(tmp_path):
    for entries in (Entries(3_000), Entries(3_000, tmp_path)):
        put(entries, range(5), 1)
        state, other, before = entries.state_dict(), copy.deepcopy(entries), table(entries)
        put(other, range(2_000), 2)
        assert table(entries) == before
        put(entries, range(5), 2)
        assert state["address"].tolist() == [7, 8, 9, 10, 11]
        assert other.size == 2_000


@pytest.mark.parametrize("change", [lambda entries: put(entries, [0], 2), lambda entries: entries.remove(0)])
def test_a_forked_process_changes_its_own(tmp_path, change):
    entries = Entries(10, tmp_path)
    put(entries, range(4), 1)
    before = table(entries)
    child = os.fork()
    if child == 0:
        change(entries)
        os._exit(0 if table(entries) != before else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert table(entries) == before


def test_a_full_disk_is_named_and_changes_nothing(tmp_path, monkeypatch):
    entries = Entries(5_000, tmp_path)
    put(entries, range(1_000), 1)
    before = table(entries)

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match=f"No space left on device: '{tmp_path}'") as info:
        put(entries, range(2_000), 2)
    assert info.value.errno == errno.ENOSPC
    assert table(entries) == before
