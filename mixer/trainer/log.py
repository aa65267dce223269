"""The streams' entries in the Trainer's log."""

import contextlib
import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Sequence

from transformers import Trainer
from transformers.utils import logging

from mixer.run.replaced_methods import replaced
from mixer.run.state import Run
from mixer.trainer.methods import MethodList
from mixer.utils.user_code import library_of

# With more streams than this, the Trainer's history, which every checkpoint contains in full, has no entries per
# stream.
MOST_STREAMS_IN_HISTORY = 256

logger = logging.get_logger(__name__)
_REPLACED_BY_MLFLOW = re.compile(r"[^0-9A-Za-z_\-. :/]")


class StreamLog:
    """Adds the entries of streams and methods to the loop's own log entry.

    Args:
        trainer: The trainer.
        run: The run.
        methods: Its methods.
    """

    def __init__(self, trainer: Trainer, run: Run, methods: MethodList):
        self._trainer, self._run, self._methods = trainer, run, methods
        self._entries: dict[str, float] | None = None  # in the loop's own entry; `None` outside of it

    @contextlib.contextmanager
    def adding_entries(self) -> Iterator[None]:
        """Adds the entries to the loop's log entry before any override of `log` sees it."""
        log = self._trainer.log
        is_ours = library_of(log) == "mixer"

        def log_with_entries(logs: dict[str, float], start_time: float | None = None) -> None:
            self._add_entries(logs)
            log_at(log, logs, start_time)

        self._entries = {}
        try:
            with contextlib.nullcontext() if is_ours else replaced(self._trainer, log=log_with_entries):
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
        history = self._trainer.state.log_history
        place = len(history)
        log_at(log, logs, start_time)
        if len(self._run.mixing.names) > MOST_STREAMS_IN_HISTORY:
            names = frozenset(self._run.mixing.names)
            of_streams = {entry for entry in self._entries or () if entry.partition("/")[2] in names}
            history[place] = {entry: value for entry, value in history[place].items() if entry not in of_streams}


def log_at(log: Callable[..., None], logs: dict[str, float], start_time: float | None) -> None:
    """Logs with a method of a class that may have no parameter `start_time`, as older versions had none."""
    parameters = inspect.signature(log).parameters.values()
    is_taken = len(parameters) > 1 or any(parameter.kind is parameter.VAR_POSITIONAL for parameter in parameters)
    log(logs, *((start_time,) if is_taken else ()))


def tell_of_merged_names(names: Iterable[str], report_to: str | Sequence[str] | None) -> None:
    """Warns of streams that MLflow shows as one curve: the Trainer replaces characters that it does not take."""
    alike: dict[str, list[str]] = {}
    for name in names if "mlflow" in (report_to or ()) else ():
        alike.setdefault(_REPLACED_BY_MLFLOW.sub("_", name), []).append(name)
    for form, merged in alike.items():
        if len(merged) > 1:
            logger.warning("MLflow shows the streams %s as one curve, %r: rename all but one.", merged, form)
