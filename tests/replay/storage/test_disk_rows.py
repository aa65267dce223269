import errno
import gc
import os
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from torch.utils.data import Dataset

from mixer.loading.reader import SampleError
from mixer.utils.arrays import Int64Array
from replay import OnDisk, ReplayBuffer
from replay.storage import DiskRows
from tests.mixer.checkpoint.test_folder_lock import held_elsewhere
from tests.refusals import refused
from tests.replay.storage.test_rows import row, same


def filled(folder: Path, count: int, rows_per_segment: int = 8) -> DiskRows:
    rows = DiskRows(folder, rows_per_segment=rows_per_segment)
    rows.append([row(number) for number in range(count)])
    return rows


def check(rows: DiskRows, numbers: list[int]) -> None:
    back = rows.read(np.array(numbers, dtype=np.int64))
    assert all(same(got, row(number)) for got, number in zip(back, numbers, strict=True))


def names(folder: Path) -> list[str]:
    """Of the files, but for that of the lock."""
    return sorted(path.name for path in folder.iterdir() if path.name != "_rows.lock")


def test_a_folder_with_rows_of_an_earlier_run_is_refused_unless_a_checkpoint_is_loaded(tmp_path):
    filled(tmp_path / "rows", 20).save(tmp_path / "saved")
    again = DiskRows(tmp_path / "rows", rows_per_segment=8)
    for call in (lambda: again.append([row(0)]), lambda: again.save(tmp_path / "other")):
        with refused("OnDisk(folder)", found=str(tmp_path / "rows")):
            call()
    again.load(tmp_path / "saved", range(20))
    assert again.append([row(20)]).tolist() == [20]
    check(again, list(range(21)))


def test_leftovers_of_a_crash_are_removed(tmp_path):
    left = tmp_path / "rows-000000000000-8.arrow.0123.tmp"
    left.write_bytes(b"half a fi")
    (tmp_path / "notes.txt").write_text("a user's own")
    DiskRows(tmp_path, is_writer=False)
    assert left.exists()
    filled(tmp_path, 8)
    assert names(tmp_path) == ["notes.txt", "rows-000000000000-8.arrow"]


@pytest.mark.parametrize("num_links", [2, 1])
def test_a_checkpoint_is_linked_or_copied_and_outlives_compaction_and_erasure(tmp_path, monkeypatch, num_links):
    def refuse(*_):
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    if num_links == 1:
        monkeypatch.setattr(os, "link", refuse)
    rows = filled(tmp_path / "rows", 100)
    rows.drop(np.arange(0, 100, 3))
    rows.save(tmp_path / "saved")
    assert all(path.stat().st_nlink == num_links for path in (tmp_path / "saved").glob("rows-*.arrow"))
    before = {path.name: path.read_bytes() for path in (tmp_path / "saved").iterdir()}
    rows.drop(np.arange(10, 90))
    rows.append([row(number, 1) for number in range(100, 160)])
    rows.erase(np.array([1, 2, 95, 120]))
    assert {path.name: path.read_bytes() for path in (tmp_path / "saved").iterdir()} == before
    for folder in ("rows", "elsewhere"):
        later = DiskRows(tmp_path / folder, rows_per_segment=8)
        live = [number for number in range(100) if number % 3]
        later.load(tmp_path / "saved", live)
        assert later.next_number == 100
        check(later, live)
        assert set(names(tmp_path / folder)) == {name for name in before if name.startswith("rows-")}


def test_a_torn_or_missing_file_is_named_when_it_is_read(tmp_path):
    rows = filled(tmp_path, 16)
    path = tmp_path / names(tmp_path)[0]
    for content in (path.read_bytes()[:-40], b"", bytes(path.stat().st_size)):
        path.unlink()
        path.write_bytes(content)
        with refused(str(path)):
            rows.read(np.array([3]))
    path.unlink()
    for call, number in ((lambda: rows.read(np.array([3])), 3), (lambda: rows.drop(np.arange(6)), 6)):
        with refused("OnDisk(folder)", found=number):
            call()


def append(rows: DiskRows, count: int) -> None:
    rows.append([row(number) for number in range(rows.next_number, rows.next_number + count)])


NUMBERS = st.one_of(
    st.lists(st.integers(0, 60), max_size=12),
    st.builds(lambda start, count: list(range(start, start + count)), st.integers(0, 60), st.integers(0, 20)),
)
CALLS = st.tuples(st.just("append"), st.integers(1, 9)) | st.tuples(st.sampled_from(["drop", "erase"]), NUMBERS)


def call(rows: DiskRows, kind: str, argument: Any) -> None:
    if kind == "append":
        append(rows, argument)
    else:
        numbers = np.array([number for number in argument if number < rows.next_number], dtype=np.int64)
        (rows.drop if kind == "drop" else rows.erase)(numbers)


def live_after(calls: list[tuple[str, Any]]) -> list[int]:
    live, next_number = set(), 0
    for kind, argument in calls:
        if kind == "append":
            live |= set(range(next_number, next_number + argument))
            next_number += argument
        else:
            live -= set(argument)
    return sorted(live)


@settings(max_examples=12)
@given(st.lists(CALLS, min_size=6, max_size=30), st.randoms(use_true_random=False))
def test_ranks_may_be_two_calls_apart(calls, random):
    with TemporaryDirectory() as folder:
        writer = DiskRows(Path(folder) / "rows", rows_per_segment=4)
        reader = DiskRows(Path(folder) / "rows", is_writer=False, rows_per_segment=4)
        for start in range(0, len(calls), 2):
            batch = calls[start : start + 2]
            before, after = live_after(calls[:start]), live_after(calls[: start + 2])
            first, second = (writer, reader) if random.random() < 0.5 else (reader, writer)
            for kind, argument in batch:
                call(first, kind, argument)
            reader.opened.cache_clear()  # as if it had read many others since
            if all(kind != "erase" for kind, _ in batch):  # nobody may read while rows are erased
                check(reader, before if first is writer else after)
            for kind, argument in batch:
                call(second, kind, argument)
            check(reader, after)
            check(writer, after)


@pytest.mark.parametrize("kind", ["disk", "memory"])
def test_no_flipped_byte_gives_another_row(kind: str, tmp_path: Path) -> None:
    """Bytes from beginning to end: what is read is what was written, or an error that names the file."""
    folders = [tmp_path / "rows", tmp_path / "again"]
    storages: list[Any] = [OnDisk(folder, rows_per_segment=4) if kind == "disk" else "memory" for folder in folders]
    buffer, again = (ReplayBuffer(7, storage=storage, seed=0) for storage in storages)
    buffer.remember("a", [{"ids": list(range(number, number + 9)), "text": f"row {number}"} for number in range(9)])
    buffer.save(tmp_path / "saved")
    expected = [buffer[slot] for slot in range(len(buffer))]
    files = sorted((tmp_path / "saved" / "rows").glob("*.arrow"))
    assert len(files) == (2 if kind == "disk" else 1)
    refused: list[bool] = []
    for path in files:
        whole = path.read_bytes()
        for place in range(0, len(whole), 53):
            path.unlink()  # a linked file is another one then
            path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x10]) + whole[place + 1 :])
            try:
                again.load(tmp_path / "saved")
                found = [again[slot] for slot in range(len(again))]
            except (ValueError, SampleError) as error:
                refused.append(path.name in str(error))
            else:
                assert found == expected
        path.write_bytes(whole)
    assert len(refused) > 10
    assert all(refused)


_MANY, _WIDTH = 1_000_000, 256


class _Numbered(Dataset[Any]):
    """Rows of bytes that tell their number."""

    def __init__(self, first: int, count: int):
        self._first, self._count = first, count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> Any:
        return np.full(_WIDTH, (self._first + index) % 251, dtype=np.uint8)


def _draw(buffer: ReplayBuffer, count: int) -> Int64Array:
    """Draws slots, whose rows must be those that were put there."""
    cursor = buffer.new_cursor(0)
    start = cursor.advance(count)
    slots = cursor.slots(np.arange(start, start + count))
    for slot in slots.tolist():
        np.testing.assert_array_equal(buffer[slot], np.full(_WIDTH, slot % 251))  # rows came in order
    return slots


def _own_bytes() -> int:
    """The memory of this process, without files that are mapped into it, which the system may drop."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line.split()[1] for line in lines if line.startswith("RssAnon:")))


@pytest.mark.full
@pytest.mark.skipif(not Path("/proc/self/status").is_file(), reason="the system does not say how much memory is used")
def test_a_million_rows_are_drawn_and_resumed_in_less_memory_than_they_have(tmp_path: Path) -> None:
    before, used, block = _own_bytes(), list[int](), _MANY // 50
    buffer = ReplayBuffer(_MANY, storage=OnDisk(tmp_path / "rows"), seed=0)
    for first in range(0, _MANY, block):
        buffer.remember(f"from {first}", _Numbered(first, block))
        used.append(_own_bytes())
    assert len(buffer) == _MANY
    drawn = _draw(buffer, 2_000)
    assert len(np.unique(drawn)) == 2_000
    buffer.save(tmp_path / "saved")
    again = _draw(buffer, 2_000)
    del buffer
    gc.collect()
    resumed = ReplayBuffer(_MANY, storage=OnDisk(tmp_path / "resumed"), seed=0)
    resumed.load(tmp_path / "saved")
    np.testing.assert_array_equal(_draw(resumed, 2_000), again)
    assert max(*used, _own_bytes()) - before < _MANY * _WIDTH


def test_a_folder_that_another_process_writes_to_is_refused(tmp_path: Path) -> None:
    with held_elsewhere(tmp_path, DiskRows), refused("OnDisk(folder)", found=str(tmp_path)):
        DiskRows(tmp_path)
    several = [DiskRows(tmp_path) for _ in range(2)]  # in turn in one process
    lock = tmp_path / "_rows.lock"
    several.pop()
    gc.collect()
    assert lock.exists()
    several.clear()
    gc.collect()
    assert not lock.exists()
