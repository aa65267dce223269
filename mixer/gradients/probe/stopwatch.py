"""Time spent on what a plain step would not do."""

import time
from collections.abc import Iterator
from contextlib import contextmanager


class Stopwatch:
    """Adds up time; on a GPU, that to give it the work.

    Attributes:
        seconds: So much so far.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self._is_running = False

    @contextmanager
    def running(self) -> Iterator[None]:
        """Counts the time that is spent inside, once where it is called inside itself."""
        if self._is_running:
            yield
            return
        start, self._is_running = time.perf_counter(), True
        try:
            yield
        finally:
            self.seconds += time.perf_counter() - start
            self._is_running = False
