"""Rows in memory and on disk do what a plain dict does, whatever is done in which order."""

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from replay.storage import DiskRows, MemoryRows, Row, Rows

KINDS = ["memory", "disk"]


def make(kind: str, folder: Path, rows_per_segment: int = 4) -> Rows:
    return MemoryRows() if kind == "memory" else DiskRows(folder, rows_per_segment=rows_per_segment)


def row(number: int, seed: int = 0) -> Row:
    """A row whose bytes occur in no other."""
    mark = f"<{seed}:{number}>"
    return Row({"text": mark * (1 + number % 3), "x": torch.full((3,), number)}, {"logits": np.full(2, seed)})


def mark_of(number: int, seed: int = 0) -> bytes:
    return f"<{seed}:{number}>".encode()


def same(left: Row, right: Row) -> bool:
    return (
        left.sample["text"] == right.sample["text"]
        and torch.equal(left.sample["x"], right.sample["x"])
        and np.array_equal(left.payload["logits"], right.payload["logits"])
    )


class AgainstDict(RuleBasedStateMachine):
    """Any order of calls."""

    kind = "disk"

    @initialize()
    def start(self):
        self.place = TemporaryDirectory()
        self.root = Path(self.place.name)
        self.num_folders, self.seed = 1, 0
        self.rows = make(self.kind, self.root / "0")
        self.model: dict[int, Row] = {}
        self.next_number = 0
        self.saved: list[tuple[Path, dict[int, Row], int]] = []

    def numbers(self, data, least: int = 0) -> list[int]:
        if self.next_number == 0:
            return []
        return data.draw(st.lists(st.integers(0, self.next_number - 1), min_size=least, max_size=8))

    @rule(count=st.integers(0, 9))
    def append(self, count):
        new = [row(self.next_number + index, self.seed) for index in range(count)]
        expected = list(range(self.next_number, self.next_number + count))
        assert self.rows.append(new).tolist() == expected
        self.model.update(zip(expected, new, strict=True))
        self.next_number += count

    @rule(data=st.data())
    def read(self, data):
        if self.model:
            numbers = data.draw(st.lists(st.sampled_from(sorted(self.model)), max_size=8))
            back = self.rows.read(np.array(numbers, dtype=np.int64))
            assert all(same(got, self.model[number]) for got, number in zip(back, numbers, strict=True))

    @rule(data=st.data())
    def drop(self, data):
        numbers = self.numbers(data)
        self.rows.drop(np.array(numbers, dtype=np.int64))
        for number in numbers:
            self.model.pop(number, None)

    @rule(data=st.data())
    def drop_all_but_a_few(self, data):
        kept = set(self.numbers(data)[:2])
        numbers = [number for number in range(self.next_number) if number not in kept]
        self.rows.drop(np.array(numbers, dtype=np.int64))
        for number in numbers:
            self.model.pop(number, None)

    @rule(data=st.data())
    def erase(self, data):
        numbers = self.numbers(data)
        self.rows.erase(np.array(numbers, dtype=np.int64))
        for number in numbers:
            self.model.pop(number, None)
        folder = self.root / str(self.num_folders - 1)
        content = b"".join(path.read_bytes() for path in folder.glob("*"))
        assert not any(mark_of(number, seed) in content for number in numbers for seed in range(self.seed + 1))

    @rule()
    def save(self):
        folder = self.root / f"checkpoint-{len(self.saved)}"
        self.rows.save(folder)
        self.saved.append((folder, dict(self.model), self.next_number))

    @precondition(lambda self: self.saved)
    @rule(data=st.data(), is_new=st.booleans())
    def load(self, data, is_new):
        folder, model, next_number = data.draw(st.sampled_from(self.saved))
        if is_new:
            self.rows = make(self.kind, self.root / str(self.num_folders))
            self.num_folders += 1
        self.rows.load(folder)
        self.model, self.next_number = dict(model), next_number
        self.seed += 1  # rows that are added now have other contents than those that were added then

    @invariant()
    def holds_what_the_dict_holds(self):
        assert self.rows.next_number == self.next_number
        numbers = np.array(sorted(self.model), dtype=np.int64)
        assert all(same(*pair) for pair in zip(self.rows.read(numbers), self.model.values(), strict=True))
        gone = sorted(set(range(self.next_number)) - set(self.model))[:3]
        for number in [*gone, self.next_number, -1]:
            with pytest.raises(KeyError):
                self.rows.read(np.array([number]))

    def teardown(self):
        if hasattr(self, "place"):
            self.place.cleanup()


class MemoryAgainstDict(AgainstDict):
    kind = "memory"


TestDisk = AgainstDict.TestCase
TestMemory = MemoryAgainstDict.TestCase
TestDisk.settings = settings(max_examples=60, stateful_step_count=25)
TestMemory.settings = settings(max_examples=15, stateful_step_count=20)


@pytest.mark.parametrize("kind", KINDS)
def test_rows_are_copies_when_they_come_and_when_they_go(kind, tmp_path):
    rows, sample = make(kind, tmp_path), {"x": torch.zeros(3)}
    rows.append([Row(sample)])
    sample["x"] += 1
    rows.read(np.array([0]))[0].sample["x"] += 1
    first, second = rows.read(np.array([0, 0]))
    first.sample["x"] += 1
    assert second.sample["x"].sum() == 0


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_that_cannot_be_kept_adds_none(kind, tmp_path):
    rows = make(kind, tmp_path)
    with pytest.raises(TypeError, match=r"sample\['a'\]"):
        rows.append([Row({"a": 1}), Row({"a": {1, 2}})])
    assert rows.next_number == 0
    assert rows.append([Row(1)]).tolist() == [0]


@pytest.mark.parametrize("kind", KINDS)
def test_a_missing_row_says_whether_it_was_ever_there(kind, tmp_path):
    rows = make(kind, tmp_path)
    rows.append([row(number) for number in range(6)])
    rows.drop(np.array([1, 5]))
    for number in (1, 5):
        with pytest.raises(KeyError, match=f"Row {number} was dropped"):
            rows.read(np.array([0, number]))
    for call in (rows.read, rows.drop, rows.erase):
        with pytest.raises(KeyError, match="There is no row 6: rows 0 to 5"):
            call(np.array([0, 6]))
    assert len(rows.read(np.array([0]))) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_a_torn_or_missing_file_of_a_checkpoint_is_named(kind, tmp_path):
    rows = make(kind, tmp_path / "rows")
    rows.append([row(number) for number in range(10)])
    rows.save(tmp_path / "whole")
    names = [path.name for path in (tmp_path / "whole").iterdir()]
    assert len(names) == (1 if kind == "memory" else 5)
    for name in names:
        for is_missing in (True, False):
            folder = tmp_path / f"{name}-{is_missing}"
            rows.save(folder)
            content = (folder / name).read_bytes()
            (folder / name).unlink()
            if not is_missing:
                (folder / name).write_bytes(content[: len(content) // 2])
            with pytest.raises(ValueError, match=f"{name} is {'missing' if is_missing else 'torn'}"):
                make(kind, tmp_path / f"new-{name}-{is_missing}").load(folder)


@pytest.mark.parametrize("kind", KINDS)
def test_saving_again_into_the_same_folder_leaves_the_later_state(kind, tmp_path):
    rows = make(kind, tmp_path / "rows")
    rows.append([row(number) for number in range(10)])
    rows.save(tmp_path / "saved")
    rows.drop(np.arange(8))
    rows.save(tmp_path / "saved")
    later = make(kind, tmp_path / "later")
    later.load(tmp_path / "saved")
    assert later.next_number == 10
    assert [back.sample["x"][0].item() for back in later.read(np.array([9, 8]))] == [9, 8]
    with pytest.raises(KeyError):
        later.read(np.array([7]))


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_at_all_can_be_saved_and_loaded(kind, tmp_path):
    make(kind, tmp_path / "rows").save(tmp_path / "saved")
    rows = make(kind, tmp_path / "later")
    rows.load(tmp_path / "saved")
    assert rows.next_number == 0
    assert rows.read(np.array([], dtype=np.int64)) == []


def test_rows_beyond_the_next_number_are_damage(tmp_path):
    rows = MemoryRows()
    rows.append([Row({"x": 1}, {}), Row({"x": 2}, {})])
    rows.save(tmp_path)
    (file,) = tmp_path.iterdir()
    content = file.read_bytes()
    assert content.count(b"next_number") >= 1
    file.write_bytes(content.replace(b"next_number", b"text_number"))  # an unknown key: it counts as 0
    with pytest.raises(ValueError, match="rows beyond its next number, 0"):
        MemoryRows().load(tmp_path)
