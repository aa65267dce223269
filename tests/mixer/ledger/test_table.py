import shutil
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings, strategies as st

from mixer.ledger.append_table import Table
from mixer.utils.files import WriteError

SCHEMA = pa.schema({"step": pa.int64(), "name": pa.string(), "value": pa.float64()})
LISTS = pa.schema({"step": pa.int64(), "row": pa.list_(pa.float64())})
NEVER = 1e9


def make_table(folder: Path, rows_per_part: int = 1_000) -> Table:
    return Table(folder, SCHEMA, rows_per_part, flush_interval_seconds=NEVER)


def append(table: Table, *steps: int, names: tuple[str, ...] = ("a", "b")) -> Table:
    for step in steps:
        table.append({"step": np.full(len(names), step), "name": list(names), "value": np.full(len(names), step / 7)})
    return table


def flushed(folder: Path, *steps: int, rows_per_part: int = 1_000) -> Table:
    """A table that was flushed after every step."""
    table = make_table(folder, rows_per_part)
    for step in steps:
        append(table, step).flush()
    return table


def steps_of(table: Table) -> list[int]:
    return table.read().column("step").to_pylist()[::2]


def tail_of(folder: Path) -> Path:
    (tail,) = folder.glob("tail*")
    return tail


def parts_of(folder: Path) -> list[Path]:
    return sorted(folder.glob("part-*.parquet"))


def refused_writes() -> Any:
    return pytest.raises(OSError, match="full")


class TestRead:
    def test_rows_and_columns_are_read_as_they_were_written_and_asked_for(self, tmp_path: Path) -> None:
        table = make_table(tmp_path / "none")
        table.truncate(3)
        assert (table.read().schema, table.is_empty(), table.read().num_rows) == (SCHEMA, True, 0)
        assert not table.folder.exists()
        table.append({"step": [1, 1], "name": ["a", "é"], "value": np.array([0.1, np.nan])})
        assert (table.is_empty(), make_table(table.folder).is_empty()) == (False, True)
        table.seal()
        assert not make_table(table.folder).is_empty()
        append(table, 2)  # one part and one tail
        np.testing.assert_equal(table.read()["value"].to_pylist(), [0.1, np.nan, 2 / 7, 2 / 7])
        assert table.read(["value", "name"]).column_names == ["value", "name"]
        assert table.read(["name"]).to_pydict() == {"name": ["a", "é", "a", "b"]}

    @settings(max_examples=30)
    @given(
        actions=st.lists(st.sampled_from(["append", "flush", "seal", "close", "read", "reopen"]), max_size=25),
        rows_per_part=st.sampled_from([1, 4, 1_000]),
    )
    def test_any_course_of_events_keeps_every_row_once(self, tmp_path_factory, actions, rows_per_part) -> None:
        folder = tmp_path_factory.mktemp("table")
        table, step = make_table(folder, rows_per_part), 0
        for action in actions:
            if action == "append":
                step += 1
                append(table, step)
            elif action == "reopen":
                table.close()
                table = make_table(folder, rows_per_part)
            else:
                getattr(table, action)()
        assert steps_of(table) == list(range(1, step + 1))


@settings(max_examples=30)
@given(
    pieces=st.lists(
        st.integers(0, 3).flatmap(
            lambda width: st.lists(st.lists(st.floats(), min_size=width, max_size=width), min_size=1, max_size=3)
        ),
        max_size=4,
    ),
    ending=st.sampled_from(["flush", "seal"]),
)
def test_lists_of_any_length_and_nan_come_back_as_they_were(tmp_path_factory, pieces, ending) -> None:
    folder = tmp_path_factory.mktemp("table")
    table = Table(folder, LISTS, flush_interval_seconds=NEVER)
    for step, piece in enumerate(pieces):
        table.append({"step": [step] * len(piece), "row": np.array(piece)})
    getattr(table, ending)()
    read = Table(folder, LISTS).read()
    assert (read.schema, read.column("row").null_count) == (LISTS, 0)
    np.testing.assert_equal(read.column("row").to_pylist(), [row for piece in pieces for row in piece])


class TestOtherProcess:
    def test_rows_that_gather_in_memory_are_bounded_however_fast_they_come(self, tmp_path: Path) -> None:
        table, names = make_table(tmp_path, rows_per_part=10**9), tuple(str(number) for number in range(1_000))
        most_waiting = 0
        for step in range(1, 41):
            append(table, step, names=names)
            most_waiting = max(most_waiting, 1_000 * step - make_table(tmp_path).read(["step"]).num_rows)
        assert most_waiting < 16_384
        assert table.read(["step"]).column("step").to_pylist() == np.repeat(np.arange(1, 41), 1_000).tolist()


class TestTornTail:
    def test_a_tail_cut_at_any_byte_gives_a_prefix_of_the_rows(self, tmp_path: Path) -> None:
        table, ends = make_table(tmp_path), []
        for step in (1, 2, 3):
            append(table, step).flush()
            ends.append(tail_of(tmp_path).stat().st_size)
        whole = tail_of(tmp_path).read_bytes()
        for length in sorted({*range(0, len(whole), 5), *(end + off for end in ends for off in (-1, 0))}):
            tail_of(tmp_path).write_bytes(whole[:length])
            found = steps_of(make_table(tmp_path))
            assert found in ([], [1], [1, 2], [1, 2, 3])
            assert len(found) >= sum(length >= end for end in ends)
        tail_of(tmp_path).write_bytes(whole + bytes(512))  # zeros that a crash left
        assert steps_of(make_table(tmp_path)) == [1, 2, 3]

    @pytest.mark.parametrize("num_lost", [0, 1, 8, 40, 200])
    def test_writing_and_truncating_go_on_after_a_torn_tail(self, tmp_path: Path, num_lost: int) -> None:
        flushed(tmp_path, 1, 2)
        whole = tail_of(tmp_path).read_bytes()
        tail_of(tmp_path).write_bytes(whole[: len(whole) - num_lost])
        table = make_table(tmp_path)
        before = steps_of(table)
        assert steps_of(append(table, 3)) == [*before, 3]
        table.seal()
        assert steps_of(make_table(tmp_path)) == [*before, 3]
        table.truncate(1)
        assert steps_of(append(table, 2)) == [*before[:1], 2]


class TestSeal:
    def test_a_crash_between_sealing_and_removing_the_tail_gives_no_duplicates(self, tmp_path: Path) -> None:
        table = flushed(tmp_path, 1, 2, 3)
        tail, content = tail_of(tmp_path), tail_of(tmp_path).read_bytes()
        table.seal()
        tail.write_bytes(content)
        recovered = make_table(tmp_path)
        assert steps_of(recovered) == [1, 2, 3]
        assert steps_of(append(recovered, 4)) == [1, 2, 3, 4]
        recovered.seal()
        assert steps_of(make_table(tmp_path)) == [1, 2, 3, 4]

    def test_rows_that_never_reached_a_tail_are_sealed_and_a_disk_that_fails_is_told(self, tmp_path: Path) -> None:
        table = append(make_table(tmp_path / "rows"), 1, 2)
        table.seal()
        table.seal()  # nothing is left to do
        append(table, 3).seal()
        assert [path.name for path in sorted(table.folder.iterdir())] == ["part-000000.parquet", "part-000001.parquet"]
        assert steps_of(table) == steps_of(make_table(table.folder)) == [1, 2, 3]
        assert table.num_rows() == 6
        full = patch("mixer.ledger.table_files.pq.write_table", side_effect=OSError("full"))
        with full, refused_writes():
            append(table, 4).seal()
        with refused_writes():
            table.seal()
        table.recover()
        append(table, 5).seal()
        assert steps_of(table) == [1, 2, 3, 5]

    def test_parts_are_of_bounded_size_and_a_crash_while_one_is_written_loses_nothing(self, tmp_path: Path) -> None:
        table = flushed(tmp_path, *range(1, 24), rows_per_part=10)
        assert [pq.read_metadata(part).num_rows for part in parts_of(tmp_path)] == [10, 10, 10, 10]
        with patch("mixer.ledger.append_table.os.fsync", side_effect=OSError("full")), refused_writes():
            table.seal()
        assert steps_of(make_table(tmp_path)) == list(range(1, 24))
        full = patch("mixer.ledger.table_files.pq.write_table", side_effect=OSError("full"))
        with full, refused_writes():
            table.truncate(8)
        resumed = make_table(tmp_path)
        resumed.truncate(8)
        assert steps_of(resumed) == list(range(1, 9))


@pytest.mark.parametrize("rows_per_part", [2, 6, 1_000])
def test_the_rows_up_to_the_step_stay(tmp_path: Path, rows_per_part: int) -> None:
    for last in (0, 1, 3, 4, 7, 8):
        table = flushed(tmp_path / str(last), *range(1, 8), rows_per_part=rows_per_part)
        table.truncate(last)
        left = list(range(1, min(last, 7) + 1))
        assert steps_of(table) == left
        assert steps_of(append(table, 99)) == [*left, 99]
        assert steps_of(make_table(tmp_path / str(last))) == steps_of(table)
    for num_left in (0, 2, 9):  # of the last step
        table = make_table(tmp_path / f"{num_left} left", rows_per_part // 2)
        for step in (1, 2, 2, 2, 3):
            append(table, step, names=("a",)).flush()
        for _ in range(2):  # cut short after any part, it is done again
            table.truncate(2, num_left)
        assert table.read()["step"].to_pylist() == [1, *[2] * min(num_left, 3)]


@pytest.mark.parametrize("kind", ["tail", "part"])
def test_a_flipped_bit_never_gives_other_rows(tmp_path: Path, kind: str) -> None:
    """It is told with the file, or changes nothing; a tail may also look cut off there."""
    table = flushed(tmp_path, 0, 1, 2)
    if kind == "part":
        table.seal()
    (path,) = tmp_path.iterdir()
    whole, expected, num_told = path.read_bytes(), make_table(tmp_path).read(), 0
    places = range(0, len(whole), 7)
    for place in places:
        changed = bytearray(whole)
        changed[place] ^= 1 << place % 8
        path.write_bytes(changed)
        told, found = "", expected
        try:
            found = make_table(tmp_path).read()
        except ValueError as error:
            told = str(error)
        num_told += bool(told)
        assert not told or told.startswith(f"{path} is damaged")
        assert found.equals(expected.slice(0, found.num_rows) if kind == "tail" else expected)
    assert num_told > len(places) / 10


class TestFilesThatVanish:
    @pytest.mark.parametrize("is_renamed", [False, True])
    def test_a_folder_that_is_removed_or_renamed_is_told_and_its_rows_are_saved(self, tmp_path, is_renamed) -> None:
        table = flushed(tmp_path / "rows", 1, 2)
        if is_renamed:
            table.folder.rename(tmp_path / "elsewhere")
        else:
            shutil.rmtree(table.folder)
        append(table, 3)
        with pytest.raises(WriteError):
            table.sync()
        assert steps_of(make_table(table.folder)) == [1, 2, 3]

    def test_a_part_that_is_removed_is_told_also_after_a_resume(self, tmp_path: Path) -> None:
        flushed(tmp_path / "rows", 1, 2, rows_per_part=2).close()
        table = make_table(tmp_path / "rows")
        table.truncate(2)
        parts_of(table.folder)[0].unlink()
        with pytest.raises(WriteError):
            append(table, 3).flush()

    def test_a_file_that_took_the_place_of_the_tail_is_left_alone(self, tmp_path: Path) -> None:
        table = flushed(tmp_path / "rows", 1)
        tail_of(table.folder).unlink()
        (table.folder / "tail-000000.arrow").write_text("other")
        with pytest.raises(WriteError):
            append(table, 2).flush()
        assert tail_of(table.folder).read_text() == "other"
