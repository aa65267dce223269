"""Rows on disk: files, checkpoints, compaction, memory, and what goes wrong with disks."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from replay.storage import DiskRows, Row, disk_rows
from replay.storage import segments as segment_files
from replay.storage.row_file import RowFile
from tests.replay.storage.test_rows import mark_of, row, same


def filled(folder: Path, count: int, rows_per_segment: int = 8) -> DiskRows:
    rows = DiskRows(folder, rows_per_segment=rows_per_segment)
    rows.append([row(number) for number in range(count)])
    return rows


def check(rows: DiskRows, numbers: list[int], seed: int = 0) -> None:
    back = rows.read(np.array(numbers, dtype=np.int64))
    assert all(same(got, row(number, seed)) for got, number in zip(back, numbers, strict=True))


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_folder_with_rows_of_an_earlier_run_is_refused_unless_a_checkpoint_is_loaded(tmp_path):
    rows = filled(tmp_path / "rows", 20)
    rows.save(tmp_path / "saved")
    again = DiskRows(tmp_path / "rows", rows_per_segment=8)
    for call in (lambda: again.append([row(0)]), lambda: again.save(tmp_path / "other")):
        with pytest.raises(ValueError, match=r"rows holds rows of an earlier run\. Give an empty folder, or load"):
            call()
    again.load(tmp_path / "saved")
    assert again.append([row(20)]).tolist() == [20]
    check(again, list(range(21)))


def test_leftovers_of_a_crash_are_removed(tmp_path):
    left = tmp_path / "rows-000000000000-000000000007-8.arrow.0123.tmp"
    left.write_bytes(b"half a fi")
    (tmp_path / "notes.txt").write_text("a user's own")
    DiskRows(tmp_path, is_writer=False)
    assert left.exists()
    rows = filled(tmp_path, 8)
    assert names(tmp_path) == ["notes.txt", "rows-000000000000-000000000007-8.arrow"]
    check(rows, list(range(8)))


def test_files_are_the_same_whoever_writes_them_and_whether_or_not_it_is_saved(tmp_path):
    folders = [tmp_path / "a", tmp_path / "b", tmp_path / "shared"]
    all_rows = [DiskRows(folder, rows_per_segment=5) for folder in (*folders, folders[2])]
    for start in range(0, 60, 4):
        for rows in all_rows:
            rows.append([row(number) for number in range(start, start + 4)])
            rows.drop(np.array([number for number in range(start) if number % 7 > start % 5]))
        all_rows[1].save(tmp_path / f"saved-{start}")
    contents = [{path.name: path.read_bytes() for path in folder.iterdir()} for folder in folders]
    assert contents[0] == contents[1] == contents[2]
    live = [number for number in range(60) if not any(number < s and number % 7 > s % 5 for s in range(0, 60, 4))]
    for rows in all_rows:
        check(rows, live)


def test_a_checkpoint_is_linked_and_outlives_compaction_and_erasure(tmp_path):
    rows = filled(tmp_path / "rows", 100)
    rows.drop(np.arange(0, 100, 3))
    rows.save(tmp_path / "saved")
    assert all(path.stat().st_nlink == 2 for path in (tmp_path / "saved").glob("rows-*.arrow"))
    before = {path.name: path.read_bytes() for path in (tmp_path / "saved").iterdir()}
    rows.drop(np.arange(10, 90))
    rows.append([row(number, 1) for number in range(100, 160)])
    rows.erase(np.array([1, 2, 95, 120]))
    assert {path.name: path.read_bytes() for path in (tmp_path / "saved").iterdir()} == before
    for folder in ("rows", "elsewhere"):
        later = DiskRows(tmp_path / folder, rows_per_segment=8)
        later.load(tmp_path / "saved")
        assert later.next_number == 100
        check(later, [number for number in range(100) if number % 3])
        segments = {name for name in before if name.startswith("rows-")}
        assert set(names(tmp_path / folder)) == segments


def test_files_are_copied_where_they_cannot_be_linked(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", refuse)
    filled(tmp_path / "rows", 20).save(tmp_path / "saved")
    assert all(path.stat().st_nlink == 1 for path in (tmp_path / "saved").iterdir())
    rows = DiskRows(tmp_path / "rows", rows_per_segment=8)
    rows.load(tmp_path / "saved")
    check(rows, list(range(20)))


def test_what_is_erased_is_in_no_file_even_if_it_was_dropped_before(tmp_path):
    rows = filled(tmp_path, 64)
    rows.drop(np.arange(10, 30))
    rows.append([row(number) for number in range(64, 69)])

    def found(number: int) -> bool:
        return any(mark_of(number) in path.read_bytes() for path in tmp_path.iterdir())

    assert found(11)
    assert found(40)
    rows.erase(np.array([11, 40, 65]))
    assert not any(map(found, (11, 40, 65)))
    check(rows, [0, 9, 30, 39, 41, 63, 64, 66])


def test_a_row_is_copied_a_bounded_number_of_times(tmp_path, monkeypatch):
    written = 0
    write = segment_files.write_rows

    def count(path, rows):
        nonlocal written
        write(path, rows)
        written += len(RowFile(path).numbers)

    monkeypatch.setattr(segment_files, "write_rows", count)
    rows, generator = DiskRows(tmp_path, rows_per_segment=16), np.random.default_rng(0)
    live = rows.append([Row(number) for number in range(200)])
    for number in range(200, 4000):  # a reservoir: the older a row, the rarer
        slot = int(generator.integers(number)) if number > 1000 else int(generator.integers(200))
        if slot < 200:
            rows.drop(live[[slot]])
            live[slot] = rows.append([Row(number)])[0]
    num_appended = rows.next_number
    assert written <= num_appended + 2 * (num_appended - 200)
    assert [back.sample for back in rows.read(live)][:3] != [0, 1, 2]
    sizes = [len(RowFile(path).numbers) for path in tmp_path.iterdir()]
    assert sum(sizes) < 3 * 200
    assert len(sizes) < 3 * 200 / 16


def test_a_file_that_is_missing_is_no_failure_to_write(tmp_path):
    rows = DiskRows(tmp_path, rows_per_segment=8)
    rows.append([row(number) for number in range(24)])
    for path in tmp_path.iterdir():
        path.unlink()
    with pytest.raises(FileNotFoundError, match=r"No file in .* holds row"):
        rows.drop(np.arange(6))


def test_dropping_everything_leaves_no_file(tmp_path):
    rows = filled(tmp_path, 64)
    rows.drop(np.arange(64))
    rows.append([row(number) for number in range(64, 72)])
    rows.append([row(number) for number in range(72, 80)])
    assert names(tmp_path) == [f"rows-{first:012d}-{first + 7:012d}-8.arrow" for first in (64, 72)]
    rows.erase(np.arange(80))
    assert names(tmp_path) == []


def test_a_segment_ends_at_8_mib(tmp_path, monkeypatch):
    monkeypatch.setattr(disk_rows, "_BYTES_PER_SEGMENT", 10_000)
    rows = DiskRows(tmp_path)
    rows.append([Row(bytes(4_000)) for _ in range(7)])
    assert len(names(tmp_path)) == 2
    rows.drop(np.array([0, 1, 3, 4]))  # both have one row left, and fit together
    rows.erase(np.array([0]))
    assert names(tmp_path) == ["rows-000000000000-000000000005-2.arrow"]
    assert [len(back.sample) for back in rows.read(np.array([2, 5, 6]))] == [4_000] * 3


def test_images_and_texts_of_any_length_come_back(tmp_path):
    rows, generator = DiskRows(tmp_path, rows_per_segment=4), np.random.default_rng(0)
    samples = [
        {
            "image": Image.frombytes("RGB", (index + 1, 9), generator.bytes(27 * (index + 1))),
            "text": "größer ist 大 " * index,
            "input_ids": list(range(index * 5)),
        }
        for index in range(11)
    ]
    numbers = rows.append([Row(sample) for sample in samples])
    for back, sample in zip(rows.read(numbers[::-1]), samples[::-1], strict=True):
        assert back.sample["image"].tobytes() == sample["image"].tobytes()
        assert (back.sample["text"], back.sample["input_ids"]) == (sample["text"], sample["input_ids"])


def test_few_files_are_open_however_many_there_are(tmp_path):
    rows = filled(tmp_path, 800, rows_per_segment=4)
    num_open = len(os.listdir("/proc/self/fd"))
    check(rows, np.random.default_rng(0).permutation(800).tolist())
    assert len(os.listdir("/proc/self/fd")) <= num_open + 128


def test_a_full_disk_is_named_and_leaves_no_half_file(tmp_path, monkeypatch):
    rows = filled(tmp_path, 16)

    def full(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=r"No space left on device: '.*rows-000000000016-000000000023-8\.arrow'") as info:
        rows.append([row(number) for number in range(16, 24)])
    assert info.value.errno == errno.ENOSPC
    assert len(names(tmp_path)) == 2
    check(rows, list(range(24)))


def test_a_torn_file_is_named_when_it_is_read(tmp_path):
    rows = filled(tmp_path, 16)
    path = tmp_path / names(tmp_path)[0]
    for content in (path.read_bytes()[:-40], b"", bytes(path.stat().st_size)):
        path.unlink()
        path.write_bytes(content)
        with pytest.raises(ValueError, match=f"{path.name} is torn"):
            rows.read(np.array([3]))
    path.unlink()
    with pytest.raises(FileNotFoundError, match="holds row 3"):
        rows.read(np.array([3]))


_MUCH = """
import sys
from pathlib import Path
import numpy as np, torch
from replay.storage import DiskRows, Row

def anonymous():
    status = Path("/proc/self/status").read_text()
    return int(status.split("RssAnon:")[1].split()[0]) / 1024

rows = DiskRows(sys.argv[1])
rows.append([Row({"x": torch.zeros(10)})])
rows.read(np.array([0]))
before = anonymous()
for start in range(0, 2000, 10):
    rows.append([Row({"x": torch.full((25_000,), float(start + index))}) for index in range(10)])
for number in np.random.default_rng(0).permutation(2000):
    assert rows.read(np.array([number + 1]))[0].sample["x"][-1] == number
rows.save(Path(sys.argv[1]) / "saved")
rows.drop(np.flatnonzero(np.arange(2001) % 3))
print(anonymous() - before)
"""


def test_memory_does_not_grow_with_the_rows(tmp_path):
    done = subprocess.run([sys.executable, "-c", _MUCH, tmp_path], capture_output=True, check=True, text=True)
    assert sum(path.stat().st_size for path in tmp_path.glob("saved/*.arrow")) > 200_000_000
    assert float(done.stdout) < 96  # MiB; there are 16 in rows of no segment yet, and some copies of them on their way


_MANY = """
import ctypes
import sys
from pathlib import Path
import numpy as np
from replay.memory.entries import Entries
from replay.storage import DiskRows, Row

def anonymous():
    ctypes.CDLL("libc.so.6").malloc_trim(0)  # what malloc keeps for later is no one's memory
    status = Path("/proc/self/status").read_text()
    return int(status.split("RssAnon:")[1].split()[0]) / 1024

folder, capacity = Path(sys.argv[1]), 360_000
rows, entries, generator = DiskRows(folder), Entries(capacity, folder), np.random.default_rng(0)

def fill(until):
    for start in range(entries.size, until, 1_000):
        numbers = rows.append([Row(start)] * 1_000)
        entries.put(np.arange(start, start + 1_000), address=numbers, row=numbers, number=numbers, task=0, label=-1)

def replace(count):
    for _ in range(count):
        slots = generator.choice(entries.size, 250, replace=False)
        rows.drop(entries["row"][slots])
        numbers = rows.append([Row(0)] * 250)
        entries.put(slots, address=numbers, row=numbers, number=numbers, task=0, label=-1)
        rows.read(entries["row"][slots])

fill(60_000)
replace(20)
before = anonymous()
fill(capacity)
print(anonymous() - before)
replace(200)
print(anonymous() - before)
"""


def test_memory_does_not_grow_with_the_number_of_tiny_rows_either(tmp_path):
    done = subprocess.run([sys.executable, "-c", _MANY, tmp_path], capture_output=True, check=True, text=True)
    print(done.stdout)
    assert max(map(float, done.stdout.split())) < 4  # MiB; 300,000 rows of 40 bytes would be 11
