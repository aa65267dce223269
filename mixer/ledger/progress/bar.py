"""Progress bars and printed logs in terminals, and the replacement of the Trainer's."""

import sys
import time
from collections.abc import Callable, Collection, Iterable
from typing import Any

from tqdm.auto import tqdm  # type: ignore[import-untyped]
from transformers import PrinterCallback, ProgressCallback, TrainerCallback
from transformers.trainer_utils import has_length

from mixer.ledger.progress.callback import ProgressLine
from mixer.ledger.progress.line import coverage_text
from mixer.ledger.progress.log_text import LoggingStyle, LogText
from mixer.mixture.controller import Mixing


class MixtureProgress(ProgressCallback):
    """The Trainer's progress bar, based on the data clock; silent without a terminal.

    Args:
        line: The progress text.
        text: Makes text of log entries; `None` prints the dict, as the Trainer does.
        max_str_len: As for `ProgressCallback`.
    """

    training_bar: Any
    prediction_bar: Any

    def __init__(self, line: ProgressLine, text: LogText | None = None, max_str_len: int = 100):
        super().__init__(max_str_len)
        self._line, self._text = line, text
        self._shown = 0.0

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Opens the bar, on the main rank."""
        self._shown = 0.0
        if state.is_world_process_zero:
            self.training_bar = tqdm(
                total=1.0, dynamic_ncols=True, disable=None, bar_format=_format(self._line.text("{elapsed}"))
            )

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Updates the bar, a few times a second."""
        bar, now = self.training_bar, time.monotonic()
        if bar is not None and not bar.disable and now - self._shown >= bar.mininterval:
            self._shown = now
            self._show(bar)

    def on_prediction_step(
        self, args: Any, state: Any, control: Any, eval_dataloader: Any = None, **kwargs: Any
    ) -> None:
        """Updates the bar of an evaluation."""
        if state.is_world_process_zero and has_length(eval_dataloader) and self.prediction_bar is None:
            leave = self.training_bar is None
            self.prediction_bar = tqdm(total=len(eval_dataloader), leave=leave, dynamic_ncols=True, disable=None)
        super().on_prediction_step(args, state, control, eval_dataloader=eval_dataloader, **kwargs)  # type: ignore[no-untyped-call]

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        """Prints a log entry above the bar."""
        if self._text is None:
            super().on_log(args, state, control, logs=logs, **kwargs)  # type: ignore[no-untyped-call]
        elif self.training_bar is not None and (text := self._text.of(logs, state)):
            self.training_bar.write(text)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Shows the final state, and closes the bar."""
        if self.training_bar is not None and not self.training_bar.disable:
            self._show(self.training_bar)
        super().on_train_end(args, state, control, **kwargs)  # type: ignore[no-untyped-call]

    def _show(self, bar: Any) -> None:
        bar.n = self._line.share
        bar.bar_format = _format(self._line.text("{elapsed}"))
        bar.refresh()


class MixturePrinter(PrinterCallback):
    """Prints log entries as text, without a bar.

    Args:
        text: Makes text of log entries.
    """

    def __init__(self, text: LogText):
        self._text = text

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        """Prints a log entry, on the main rank."""
        logs.pop("total_flos", None)  # callbacks that follow the Trainer's own do not see it either
        if state.is_world_process_zero and (text := self._text.of(logs, state)):
            print(text)  # noqa: T201


def replace_progress_bars(
    callbacks: list[TrainerCallback],
    mixing: Callable[[], Mixing],
    style: LoggingStyle,
    sets: Callable[[], Collection[str]],
) -> None:
    """Replaces the Trainer's own bars and printed logs by ones on the data clock; custom ones remain.

    Args:
        callbacks: Callbacks of the trainer.
        mixing: Returns the controller of the current run.
        style: How log entries are printed.
        sets: Returns the names of the evaluation sets.
    """
    line = ProgressLine(mixing)
    text = None if style == "dict" else LogText(mixing, line, sets)
    for place, callback in enumerate(callbacks):
        if type(callback) is ProgressCallback:
            callbacks[place] = MixtureProgress(line, text, callback.max_str_len)
        elif type(callback) is PrinterCallback and text is not None:
            callbacks[place] = MixturePrinter(text)
        elif type(callback) is getattr(sys.modules.get("transformers.utils.notebook"), "NotebookProgressCallback", ""):
            from mixer.ledger.progress.notebook import NotebookMixtureProgress  # it imports IPython

            callbacks[place] = NotebookMixtureProgress(line, text)
    callbacks.insert(0, line)  # before the bars that show it


def show_in_own_bars(callbacks: Iterable[TrainerCallback], max_steps: int, mixing: Mixing) -> None:
    """Updates custom bars, which count steps.

    Args:
        callbacks: Callbacks of the trainer.
        max_steps: Currently expected steps of the whole run.
        mixing: Controller.
    """
    for callback in callbacks:
        if isinstance(callback, ProgressCallback) and not isinstance(callback, MixtureProgress):
            bar: Any = callback.training_bar
            if bar is not None:
                bar.total = max_steps
                bar.set_postfix_str(coverage_text(mixing), refresh=False)


def _format(text: str) -> str:
    """Returns tqdm's format; stream names may contain braces."""
    escaped = text.replace("{", "{{").replace("}", "}}").replace("{{elapsed}}", "{elapsed}", 1)
    return "{percentage:3.0f}%|{bar}| " + escaped
