"""Connects trackers among the Trainer's callbacks, which receive grouped entries instead of flat ones."""

import tempfile
from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pandas as pd
from transformers import TrainerCallback
from transformers.integrations.integration_utils import (
    MLflowCallback,
    TensorBoardCallback,
    TrackioCallback,
    WandbCallback,
)
from transformers.utils import logging

from mixer.ledger.summary import summarise
from mixer.ledger.trackers.adapters import MLflow, TensorBoard, Tracker, Trackio, WeightsAndBiases
from mixer.ledger.trackers.description import RunText, evaluation_losses, grouped, markdown_table
from mixer.mixture.controller import Mixing

PAGE_GROUP = "adaptive_mixer.pages"  # an entry point, since reports are built above training

logger = logging.get_logger(__name__)

_TRACKERS: tuple[tuple[type[TrainerCallback], type[Tracker]], ...] = (
    (TensorBoardCallback, TensorBoard),
    (WandbCallback, WeightsAndBiases),
    (MLflowCallback, MLflow),
    (TrackioCallback, Trackio),
)


class Reporting:
    """Reports the streams of a trainer's runs to trackers.

    Args:
        trainer: Mixing trainer.
        settle: Writes pending rows to its ledger.
    """

    def __init__(self, trainer: Any, settle: Callable[[], None]):
        self._trainer = trainer
        self._settle = settle
        self.own: frozenset[str] = frozenset()  # names of the mixture's values in the next log entry
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def hook(self) -> None:
        """Connects the trackers among the callbacks, except classes that override logging."""
        self._folder = None
        for callback in self._trainer.callback_handler.callbacks:
            hooked = getattr(callback.on_log, "__self__", None)
            if isinstance(hooked, _Hook):
                if hooked.reporting is self:
                    continue
                hooked.remove()  # of another trainer
            for kind, tracker in _TRACKERS:
                if isinstance(callback, kind) and type(callback).on_log is kind.on_log:
                    _Hook(self, callback, tracker(callback))

    def note(self, entries: Mapping[str, float]) -> None:
        """Records which entries of the next log belong to the mixture."""
        self.own = frozenset(entries)

    @property
    def is_plain(self) -> bool:
        """Whether the run is as in the Trainer: one dataset, counted in steps. Trackers then get nothing extra."""
        mixing: Mixing = self._trainer.mixing
        return len(mixing.names) == 1 and mixing.clock.is_step_based

    def entries(self, logs: Mapping[str, Any]) -> dict[str, float]:
        """Returns the mixture's values of a log entry, grouped by name; empty if it has none."""
        if self.is_plain:
            return {}
        mixing, sets = self._trainer.mixing, self._trainer.eval_dataset
        names = {*mixing.names, *(sets if isinstance(sets, dict) else ())}
        entries = grouped({name: logs[name] for name in logs if name in self.own}) | evaluation_losses(logs, names)
        if not entries:
            return {}
        clock = mixing.clock
        where = {"epoch": clock.epoch, "samples": clock.num_samples, "tokens": clock.num_tokens}
        return {**{f"clock/{name}": value for name, value in where.items()}, **entries}

    def run_text(self) -> RunText:
        """Returns the texts about the run."""
        return RunText(self._trainer.describe_run(), self._trainer.recipe_text)

    def summary(self) -> str:
        """Returns the results as a Markdown table."""
        self._settle()
        rows = summarise(self._run_folder).table.astype({"samples": object}).to_dict("records")
        known = [{str(name): None if value is pd.NA else value for name, value in row.items()} for row in rows]
        return markdown_table(known)

    def page(self) -> Path | None:
        """Writes the report page once for all trackers; `None` without the extra `report`."""
        try:
            (entry,) = entry_points(group=PAGE_GROUP, name="run")
            write_report = entry.load()  # its libraries are an extra that training does without
        except (ModuleNotFoundError, ValueError) as error:
            logger.info("Trackers get no report page: %s", error)
            return None
        if self._folder is None:
            self._settle()
            self._folder = tempfile.TemporaryDirectory()
            write_report([self._run_folder], Path(self._folder.name) / "report.html")
        return Path(self._folder.name) / "report.html"

    @property
    def _run_folder(self) -> Path:
        folder: Path = self._trainer.ledger.folder.parent
        return folder


class _Hook:
    """Intercepts a callback's events: a failing tracker causes a warning, and training continues."""

    def __init__(self, reporting: Reporting, callback: Any, tracker: Tracker):
        self.reporting, self._callback, self._tracker = reporting, callback, tracker
        self._warned: set[str] = set()
        for event in ("on_train_begin", "on_log", "on_train_end"):
            setattr(callback, event, getattr(self, event))

    def remove(self) -> None:
        for event in ("on_train_begin", "on_log", "on_train_end"):
            delattr(self._callback, event)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        result = type(self._callback).on_train_begin(self._callback, args, state, control, **kwargs)
        if state.is_world_process_zero and not self.reporting.is_plain:
            self._attempt("the description", lambda: self._tracker.begin(self.reporting.run_text()))
        return result

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> Any:
        entries = self.reporting.entries(logs) if state.is_world_process_zero else {}
        is_open = bool(entries) and self._tracker.is_open
        if is_open:
            self._log(entries, state.global_step)
        rest = {name: value for name, value in logs.items() if name not in self.reporting.own}
        told = self._tracker.told_apart(rest)
        result = type(self._callback).on_log(self._callback, args, state, control, logs=told, **kwargs)
        if entries and not is_open:  # the callback has just opened a run
            self._log(entries, state.global_step)
        return result

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        if state.is_world_process_zero and not self.reporting.is_plain:
            self._attempt("the results", lambda: self._tracker.end(self.reporting.summary, self.reporting.page))
        return type(self._callback).on_train_end(self._callback, args, state, control, **kwargs)

    def _log(self, entries: Mapping[str, float], step: int) -> None:
        self._attempt("the streams' metrics", lambda: self._tracker.log(entries, step))

    def _attempt(self, content: str, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception as error:
            if content not in self._warned:
                self._warned.add(content)
                logger.warning("%s could not log %s: %r", type(self._tracker).__name__, content, error)
