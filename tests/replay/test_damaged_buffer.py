"""A saved buffer that is not what was written: refused with its file or what is wrong, and the buffer as before."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from replay import ReplayBuffer
from replay.memory.entries import Entries
from replay.storage.saved_state import read_state, write_state
from tests.replay.buffers import letters, snapshot


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    buffer = ReplayBuffer(8, seed=0)
    buffer.remember("a", letters(40))
    buffer.save(tmp_path / "saved")
    state = tmp_path / "saved" / "buffer.json"
    content = json.loads(state.read_text())
    state.write_text(json.dumps({name: value for name, value in content.items() if name != "crc32"}))
    return tmp_path / "saved"


def refused(folder: Path, said: str) -> None:
    buffer = ReplayBuffer(8, seed=0)
    buffer.remember("a", letters(40), [1, 2])
    before = snapshot(buffer)
    with pytest.raises(ValueError) as info:  # noqa: PT011  # its words are compared below
        buffer.load(folder)
    assert type(info.value) is ValueError
    assert said in str(info.value)
    assert snapshot(buffer) == before


def test_without_a_change_it_is_read(saved: Path) -> None:
    buffer = ReplayBuffer(8, seed=0)
    buffer.remember("a", letters(40), [])
    buffer.load(saved)
    assert len(buffer) == 8


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("num_drawn", None, "buffer.json is damaged"),
        ("num_drawn", "four", "buffer.json is damaged"),
        ("forgotten", None, "buffer.json is damaged"),
        ("sources", {}, "buffer.json is damaged"),
        ("parts", 3, "buffer.json is damaged"),
        ("parts", [], "buffer.json is damaged"),
        ("plain", [], "buffer.json is damaged"),
        ("digests", [], "buffer.json is damaged"),
        ("capacity", None, "saved with capacity=None"),
    ],
)
def test_a_value_that_cannot_be_is_refused(saved: Path, name: str, value: Any, said: str) -> None:
    content = json.loads((saved / "buffer.json").read_text())
    assert name in content
    (saved / "buffer.json").write_text(json.dumps({**content, name: value}))
    refused(saved, said)


@pytest.mark.parametrize("name", ["key", "num_offered", "sources", "forgotten", "capacity", "parts", "plain"])
def test_what_is_lacking_is_told(saved: Path, name: str) -> None:
    content = json.loads((saved / "buffer.json").read_text())
    del content[name]
    (saved / "buffer.json").write_text(json.dumps(content))
    refused(saved, "capacity=None" if name == "capacity" else "buffer.json")


def test_a_selection_of_other_entries_is_refused(saved: Path) -> None:
    with np.load(saved / "buffer.npz") as file:
        arrays = dict(file)
    fewer = {name: values[:-1] if name.startswith("entries/") else values for name, values in arrays.items()}
    np.savez(saved / "buffer.npz", **fewer)
    refused(saved, "the selection knows 8 entries, and there are 7")


def test_an_array_that_says_it_is_larger_than_its_file_is_refused(tmp_path: Path) -> None:
    write_state(tmp_path / "buffer", {"format": 1}, {"entries": {"address": np.arange(4)}})
    path = tmp_path / "buffer.npz"
    path.write_bytes(path.read_bytes().replace(b"(4,), }", b"(10**9,)")[: path.stat().st_size])
    with pytest.raises(ValueError, match=re.escape(str(path))):
        read_state(tmp_path / "buffer")


class TestEntries:
    def _state(self, **columns: Any) -> dict[str, Any]:
        whole: dict[str, Any] = {name: np.zeros(2, np.int64) for name in ("address", "row", "number", "task", "label")}
        return {**whole, **columns}

    def test_whole_columns_are_taken(self) -> None:
        entries = Entries(2)
        entries.load_state_dict(self._state())
        assert entries.size == 2

    def test_more_than_there_is_room_for_are_refused(self) -> None:
        with pytest.raises(ValueError, match="there are 2 entries, and room for 1"):
            Entries(1).load_state_dict(self._state())
