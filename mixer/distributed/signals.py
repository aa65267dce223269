"""Signals that end a run: recorded during training, handled after the current step."""

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

# Pre-emption sends SIGTERM, people send SIGINT (Ctrl-C), and Slurm sends the signal of its --signal option.
_NUMBERS = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGINT", "SIGUSR1") if hasattr(signal, name))
NUM_SIGNALS = len(_NUMBERS)
# Default handlers.
_UNHANDLED: tuple[Any, ...] = (signal.SIG_DFL, signal.default_int_handler)
# Launchers forward a Ctrl-C to ranks that have received it from the terminal already: it does not count twice.
_SECONDS_TO_BE_ANOTHER = 1.0
_SECONDS_LEFT_TO_WORKERS = 60


class RunTerminated(SystemExit):
    """A run was saved and ended after a signal; if not caught, the process exits as by that signal.

    Args:
        message: Outcome of the run.
        number: Signal.
    """

    def __init__(self, message: str, number: int):
        super().__init__(128 + number)
        self.message = message

    def __str__(self) -> str:
        return self.message


class RunInterrupted(KeyboardInterrupt):
    """A run was saved and ended after a SIGINT."""


class StopSignals:
    """Records signals while active: in the main thread, and only those without other handlers."""

    def __init__(self) -> None:
        self._received: dict[int, float] = {}
        self.flags = (0,) * NUM_SIGNALS  # received signals, 0 and 1
        self._previous: dict[int, Any] = {}
        self._process = os.getpid()

    def __enter__(self) -> "StopSignals":
        if threading.current_thread() is threading.main_thread():
            for number in _NUMBERS:
                if signal.getsignal(number) in _UNHANDLED:
                    self._previous[number] = signal.signal(number, self.record)
        return self

    def __exit__(self, *_: object) -> None:
        for number, previous in self._previous.items():
            signal.signal(number, previous)
        self._previous = {}

    def record(self, number: int, frame: FrameType | None) -> None:
        """Records a signal, as its handler; a second SIGINT interrupts at once."""
        if os.getpid() != self._process:
            if number != signal.SIGINT:  # in a forked worker: let the run, which still needs it, end first
                signal.signal(number, signal.SIG_DFL)
                signal.alarm(_SECONDS_LEFT_TO_WORKERS)
            return
        now, first = time.monotonic(), self._received.setdefault(number, time.monotonic())
        self.flags = tuple(int(number in self._received) for number in _NUMBERS)
        if number == signal.SIGINT and now - first >= _SECONDS_TO_BE_ANOTHER:
            signal.default_int_handler(number, frame)
        if now <= first:
            _tell(number)


def which(flags: Any) -> signal.Signals | None:
    """Returns the signal that ends a run, SIGTERM first, or `None`, from the sum of the ranks' `StopSignals.flags`."""
    if not any(flags):
        return None
    return next(signal.Signals(number) for number, count in zip(_NUMBERS, flags, strict=False) if count)


def ending(message: str, number: signal.Signals) -> BaseException:
    """Returns the exception for a run that ended after a signal.

    Args:
        message: Outcome of the run.
        number: Signal.

    Returns:
        A `KeyboardInterrupt` for SIGINT, else an exception that exits with the signal's status.
    """
    return RunInterrupted(message) if number == signal.SIGINT else RunTerminated(message, number)


def begin_worker(then: Callable[[int], None] | None, worker_id: int) -> None:
    """Initialises a worker: forked from a run that handles signals, it outlives the current step.

    Torch replaces the SIGTERM handler in its workers. Schedulers send SIGTERM to all processes: workers would end
    during the step that the run still has to complete.

    Args:
        then: Further initialisation.
        worker_id: Number of the worker.
    """
    for number in _NUMBERS:
        handler = signal.getsignal(number)
        if getattr(handler, "__func__", None) is StopSignals.record:
            signal.signal(number, handler)
    if then is not None:
        then(worker_id)


def _tell(number: int) -> None:
    name = signal.Signals(number).name
    again = " Another one ends it at once." if number == signal.SIGINT else ""
    with contextlib.suppress(RuntimeError, OSError, ValueError):  # the stream may be busy or closed
        print(f"{name}: the run ends after this step or the next one, with a checkpoint.{again}", file=sys.stderr)  # noqa: T201
