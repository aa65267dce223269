"""Connects trackers among the Trainer's callbacks, which receive grouped entries instead of flat ones."""

from collections.abc import Callable, Mapping
from typing import Any

from transformers import TrainerCallback
from transformers.integrations.integration_utils import (
    MLflowCallback,
    TensorBoardCallback,
    TrackioCallback,
    WandbCallback,
)
from transformers.utils import logging

from mixer.ledger.trackers.adapters import MLflow, TensorBoard, Tracker, Trackio, WeightsAndBiases
from mixer.ledger.trackers.tracked_settings import config_of, evaluation_losses, grouped
from mixer.mixture.controller import Mixing

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
    """

    def __init__(self, trainer: Any):
        self._trainer = trainer
        self.own: frozenset[str] = frozenset()  # names of the mixture's values in the next log entry

    def hook(self) -> None:
        """Connects the trackers among the callbacks, except classes that override logging."""
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

    def config(self) -> dict[str, Any]:
        """Returns the run's description and recipe; see `config_of`."""
        return config_of(self._trainer.describe_run(), self._trainer.recipe_text)


class _Hook:
    """Intercepts a callback's events: a failing tracker causes a warning, and training continues."""

    def __init__(self, reporting: Reporting, callback: Any, tracker: Tracker):
        self.reporting, self._callback, self._tracker = reporting, callback, tracker
        self._warned: set[str] = set()
        for event in ("on_train_begin", "on_log"):
            setattr(callback, event, getattr(self, event))

    def remove(self) -> None:
        for event in ("on_train_begin", "on_log"):
            delattr(self._callback, event)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        result = type(self._callback).on_train_begin(self._callback, args, state, control, **kwargs)
        if state.is_world_process_zero and not self.reporting.is_plain:
            self._attempt("the description", lambda: self._tracker.begin(self.reporting.config()))
        return result

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> Any:
        entries = self.reporting.entries(logs) if state.is_world_process_zero else {}
        is_open = bool(entries) and self._tracker.is_open
        if is_open:
            self._log(entries, state.global_step)
        rest = {name: value for name, value in logs.items() if name not in self.reporting.own}
        told = self._tracker.distinct_names(rest)
        result = type(self._callback).on_log(self._callback, args, state, control, logs=told, **kwargs)
        if entries and not is_open:  # the callback has just opened a run
            self._log(entries, state.global_step)
        return result

    def _log(self, entries: Mapping[str, float], step: int) -> None:
        self._attempt("the streams' metrics", lambda: self._tracker.log(entries, step))

    def _attempt(self, content: str, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception as error:
            if content not in self._warned:
                self._warned.add(content)
                logger.warning("%s could not log %s: %r", type(self._tracker).__name__, content, error)
