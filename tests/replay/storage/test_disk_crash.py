"""A process that is killed at any instant leaves whole files, and its last checkpoint gives exactly its rows."""

import os
import random
import signal
import time
from pathlib import Path

import numpy as np
import pytest

from replay.storage import DiskRows
from replay.storage.row_file import RowFile
from tests.replay.storage.test_disk_rows import check
from tests.replay.storage.test_rows import row

_APPENDED = 3


def _live(step: int) -> list[int]:
    """What is there after a step of the run below."""
    return [number for number in range(step * _APPENDED) if number % 5 == 0 or number >= (step - 6) * _APPENDED]


def _run(root: Path, begins_from: int) -> None:
    """Adds, drops, and saves at every seventh step, without end."""
    rows = DiskRows(root / "rows", rows_per_segment=4)
    if begins_from:
        rows.load(root / f"saved-{begins_from}")
    for step in range(begins_from + 1, 10**9):
        rows.append([row(number) for number in range(rows.next_number, rows.next_number + _APPENDED)])
        gone = [number for number in range(max(step - 7, 0) * _APPENDED, (step - 6) * _APPENDED) if number % 5]
        rows.drop(np.array(gone, dtype=np.int64))
        if step % 7 == 0:
            rows.save(root / f"saved-{step}")


def _last_saved(root: Path) -> int:
    """The last checkpoint that was written to its end."""
    return max((int(path.parent.name.split("-")[1]) for path in root.glob("saved-*/rows.json")), default=0)


@pytest.mark.parametrize("seed", range(3))
def test_a_killed_run_goes_on_from_its_last_checkpoint(tmp_path, seed):
    generator, saved = random.Random(seed), 0
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
        time.sleep(generator.random() * 0.2)
        os.kill(child, signal.SIGKILL)
        assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
        for path in tmp_path.glob("rows/rows-*.arrow"):
            assert len(RowFile(path).numbers) == int(path.stem.split("-")[-1])
        saved = _last_saved(tmp_path)
        rows = DiskRows(tmp_path / "rows", rows_per_segment=4)
        assert not list(tmp_path.glob("rows/*.tmp"))
        rows.load(tmp_path / f"saved-{saved}")
        assert rows.next_number == saved * _APPENDED
        check(rows, _live(saved))
        assert len(list(tmp_path.glob("rows/*"))) == len(list(tmp_path.glob(f"saved-{saved}/rows-*.arrow")))
