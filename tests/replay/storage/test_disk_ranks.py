"""Ranks that read files which another one writes, earlier or later than they look; and one that is killed."""

import os
import random
import signal
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from replay.storage import DiskRows
from replay.storage.row_file import RowFile
from tests.replay.storage.test_disk_rows import check
from tests.replay.storage.test_rows import row


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


@settings(max_examples=30)
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
            reader._files.open_files.clear()  # as if it had read many others since
            if all(kind != "erase" for kind, _ in batch):  # nobody may read while rows are erased
                check(reader, before if first is writer else after)
            for kind, argument in batch:
                call(second, kind, argument)
            check(reader, after)
            check(writer, after)


def _live(step: int) -> list[int]:
    return [number for number in range(step * 3) if number % 5 == 0 or number >= (step - 6) * 3]


def _run(root: Path, begins_from: int) -> None:
    """Adds three rows a step, drops, and saves at every seventh step, without end."""
    rows = DiskRows(root / "rows", rows_per_segment=4)
    if begins_from:
        rows.load(root / f"saved-{begins_from}")
    for step in range(begins_from + 1, 10**9):
        append(rows, 3)
        gone = [number for number in range(max(step - 7, 0) * 3, (step - 6) * 3) if number % 5]
        rows.drop(np.array(gone, dtype=np.int64))
        if step % 7 == 0:
            rows.save(root / f"saved-{step}")


def _last_saved(root: Path) -> int:
    return max((int(path.parent.name.split("-")[1]) for path in root.glob("saved-*/rows.json")), default=0)


def test_a_killed_run_goes_on_from_its_last_checkpoint(tmp_path):
    generator, saved = random.Random(0), 0
    for _ in range(4):
        child = os.fork()
        if child == 0:
            try:
                _run(tmp_path, saved)
            finally:
                os._exit(1)
        deadline = time.monotonic() + 60
        while _last_saved(tmp_path) <= saved and time.monotonic() < deadline:
            time.sleep(0.002)
        time.sleep(generator.random() * 0.1)
        os.kill(child, signal.SIGKILL)
        assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
        for path in tmp_path.glob("rows/rows-*.arrow"):
            assert len(RowFile(path).numbers) == int(path.stem.split("-")[-1])
        saved = _last_saved(tmp_path)
        rows = DiskRows(tmp_path / "rows", rows_per_segment=4)
        assert not list(tmp_path.glob("rows/*.tmp"))
        rows.load(tmp_path / f"saved-{saved}")
        assert rows.next_number == saved * 3
        check(rows, _live(saved))
        assert len(list(tmp_path.glob("rows/*"))) == len(list(tmp_path.glob(f"saved-{saved}/rows-*.arrow")))
