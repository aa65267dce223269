"""Files that are written for good."""

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest

from mixer.utils import files


def test_work_at_once_waits_for_all_of_it_and_raises_the_first_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "ThreadPoolExecutor", ThreadPoolExecutor)  # other tests do without threads
    together, done = Barrier(4, timeout=60.0), []

    def work(number: int) -> None:
        together.wait()  # passes only if all four are at work
        done.append(number)
        if number % 2:
            raise OSError(number)

    with pytest.raises(OSError, match="1"):
        files.at_once(work, range(4))
    assert sorted(done) == [0, 1, 2, 3]
