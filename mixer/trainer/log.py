"""The streams' entries in the Trainer's log."""

import contextlib
import inspect
from collections.abc import Callable, Iterator

from transformers import Trainer

from mixer.ledger.trackers.reporting import Reporting
from mixer.run.state import Run
from mixer.trainer.methods import MethodList
from mixer.trainer.replaced_methods import log_replaced

# With more streams than this, the Trainer's history, which every checkpoint contains in full, has no entries per
# stream.
MOST_STREAMS_IN_HISTORY = 256


class StreamLog:
    """Adds the entries of streams and methods to the loop's own log entry.

    Args:
        trainer: The trainer.
        run: The run.
        methods: Its methods.
        reporting: Reports to trackers.
    """

    def __init__(self, trainer: Trainer, run: Run, methods: MethodList, reporting: Reporting):
        self._trainer, self._run, self._methods, self._reporting = trainer, run, methods, reporting
        self._entries: dict[str, float] | None = None  # in the loop's own entry; `None` outside of it

    @contextlib.contextmanager
    def adding_entries(self) -> Iterator[None]:
        """Adds the entries to the loop's log entry before any override of `log` sees it."""
        log = self._trainer.log

        def log_with_entries(logs: dict[str, float], start_time: float | None = None) -> None:
            self._add_entries(logs)
            log_at(log, logs, start_time)

        self._entries = {}
        try:
            with log_replaced(self._trainer, log_with_entries):
                yield
        finally:
            self._entries = None

    def _add_entries(self, logs: dict[str, float]) -> None:
        if "loss" in logs and self._entries == {}:
            self._entries = self._run.recorder.log_entries() | self._methods.log_entries()
            logs.update(self._entries)

    def log(self, log: Callable[..., None], logs: dict[str, float], start_time: float | None) -> None:
        """Logs; see `MixingMixin.log`.

        Args:
            log: The Trainer's own.
            logs: The entry.
            start_time: Start time of the run, for its speed.
        """
        self._add_entries(logs)
        entries = {entry: value for entry, value in (self._entries or {}).items() if entry in logs}
        self._reporting.note(entries)
        history = self._trainer.state.log_history
        place = len(history)
        log_at(log, logs, start_time)
        if len(self._run.mixing.names) > MOST_STREAMS_IN_HISTORY:
            names = frozenset(self._run.mixing.names)
            of_streams = {entry for entry in entries if entry.partition("/")[2] in names}
            history[place] = {entry: value for entry, value in history[place].items() if entry not in of_streams}


def log_at(log: Callable[..., None], logs: dict[str, float], start_time: float | None) -> None:
    """Logs with a method of a class that may have no parameter `start_time`, as older versions had none."""
    parameters = inspect.signature(log).parameters.values()
    is_taken = len(parameters) > 1 or any(one.kind is one.VAR_POSITIONAL for one in parameters)
    log(logs, *((start_time,) if is_taken else ()))
