"""Ranks that read files which another one writes, earlier or later than they look."""

import shutil
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replay.storage import DiskRows
from tests.replay.storage.test_disk_rows import check
from tests.replay.storage.test_rows import row


def num_held(rows: DiskRows) -> int:
    return sum(len(segment.held) for segment in rows._segments)


def append(rows: DiskRows, count: int, seed: int = 0) -> None:
    rows.append([row(number, seed) for number in range(rows.next_number, rows.next_number + count)])


def test_who_does_not_write_keeps_rows_in_memory_until_their_file_is_there(tmp_path):
    reader = DiskRows(tmp_path / "rows", is_writer=False, rows_per_segment=4)
    assert not (tmp_path / "rows").exists()
    append(reader, 10)
    check(reader, list(range(10)))
    assert num_held(reader) == 8
    append(DiskRows(tmp_path / "rows", rows_per_segment=4), 10)
    append(reader, 2)
    assert num_held(reader) == 4  # the writer has not come so far
    check(reader, list(range(12)))


def test_who_does_not_write_reads_a_checkpoint_until_the_writer_has_taken_it_up(tmp_path):
    writer = DiskRows(tmp_path / "rows", rows_per_segment=4)
    append(writer, 18)
    writer.save(tmp_path / "saved")
    append(writer, 18, seed=1)
    reader = DiskRows(tmp_path / "new", is_writer=False, rows_per_segment=4)
    reader.load(tmp_path / "saved")
    reader.drop(np.array([0, 1, 2]))
    check(reader, list(range(3, 18)))
    writer = DiskRows(tmp_path / "new", rows_per_segment=4)
    writer.load(tmp_path / "saved")
    shutil.rmtree(tmp_path / "saved")
    check(reader, list(range(3, 18)))
    writer.drop(np.array([0, 1, 2]))
    append(writer, 6)
    append(reader, 6)
    check(reader, list(range(3, 24)))
    assert num_held(reader) == 0


def test_a_folder_that_is_not_shared_is_named(tmp_path):
    reader = DiskRows(tmp_path / "rows", is_writer=False, rows_per_segment=4)
    append(DiskRows(tmp_path / "rows", rows_per_segment=4), 8)
    append(reader, 8)
    shutil.rmtree(tmp_path / "rows")
    with pytest.raises(FileNotFoundError, match="rows holds row 3"):
        check(reader, [3])


CALLS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(1, 9)),
        st.tuples(st.just("drop"), st.lists(st.integers(0, 200), max_size=12)),
        st.tuples(st.just("erase"), st.lists(st.integers(0, 200), max_size=2)),
    ),
    max_size=40,
)


@settings(max_examples=100)
@given(CALLS, st.randoms(use_true_random=False))
def test_ranks_may_be_a_call_apart(calls, random):
    with TemporaryDirectory() as folder:
        writer = DiskRows(Path(folder) / "rows", rows_per_segment=4)
        reader = DiskRows(Path(folder) / "rows", is_writer=False, rows_per_segment=4)
        live: dict[int, None] = {}
        for kind, argument in calls:
            before, is_first = list(live), random.random() < 0.5
            numbers = [] if kind == "append" else [number for number in argument if number < writer.next_number]
            for index, rows in enumerate((writer, reader) if is_first else (reader, writer)):
                if kind == "append":
                    live.update(dict.fromkeys(range(rows.next_number, rows.next_number + argument)))
                    append(rows, argument)
                else:
                    for number in numbers:
                        live.pop(number, None)
                    (rows.drop if kind == "drop" else rows.erase)(np.array(numbers, dtype=np.int64))
                if index == 0 and kind != "erase":  # nobody may read while rows are erased
                    check(reader, before if rows is writer else list(live))
            check(reader, list(live))
            check(writer, list(live))
