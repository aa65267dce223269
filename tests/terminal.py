"""A real terminal for tests: a process on a pseudo-terminal, and the screen that a person would see."""

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pyte

ROOT = Path(__file__).parents[1]


class Terminal:
    """A Python process whose output is a terminal of so many columns and rows."""

    def __init__(self, arguments: Sequence[str], columns: int = 80, rows: int = 24):
        self.screen = pyte.Screen(columns, rows)
        self._stream = pyte.ByteStream(self.screen)
        self.written = b""
        self._own, side = pty.openpty()
        self.resize(columns, rows)
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm-256color", "OMP_NUM_THREADS": "1"}
        for name in ("COLUMNS", "LINES", "NO_COLOR", "CI"):
            environment.pop(name, None)
        self.process = subprocess.Popen(
            [sys.executable, *arguments],
            stdin=side,
            stdout=side,
            stderr=side,
            env=environment,
            start_new_session=True,
            # Where tests run in the background Ctrl-C is ignored, and whatever they start would ignore it too.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        os.close(side)

    @property
    def text(self) -> str:
        return "\n".join(line.rstrip() for line in self.screen.display)

    def wait_for(self, holds: Callable[[str], bool], timeout_seconds: float = 60.0) -> str:
        """Reads until the screen is as it should be, and gives it."""
        end = time.monotonic() + timeout_seconds
        while not holds(self.text):
            assert time.monotonic() < end, f"never came:\n{self.text}"
            if not self._read() and self.process.poll() is not None:
                assert holds(self.text), f"ended:\n{self.text}"
        return self.text

    def wait(self, timeout_seconds: float = 60.0) -> int:
        """Reads to the end, and gives the status."""
        end = time.monotonic() + timeout_seconds
        while self._read() or self.process.poll() is None:
            assert time.monotonic() < end, f"never ended:\n{self.text}"
        return self.process.wait()

    def resize(self, columns: int, rows: int) -> None:
        fcntl.ioctl(self._own, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.screen.resize(rows, columns)
        self.screen.reset()

    def interrupt(self) -> None:
        self.process.send_signal(signal.SIGINT)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self._own)

    def _read(self) -> bool:
        if not select.select([self._own], [], [], 0.05)[0]:
            return False
        try:
            data = os.read(self._own, 65536)
        except OSError:  # the other side is closed
            return False
        self.written += data
        self._stream.feed(data)
        return bool(data)
