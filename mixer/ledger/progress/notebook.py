"""Progress bar and table of streams in notebooks."""

import html
from typing import Any

from transformers.utils.notebook import NotebookProgressCallback, NotebookTrainingTracker

from mixer.ledger.progress.callback import ProgressLine
from mixer.ledger.progress.log_text import LogText
from mixer.utils.text import duration_text


class NotebookMixtureProgress(NotebookProgressCallback):
    """The Trainer's notebook bar and table, with the bar based on the data clock, and the table of streams below it.

    Args:
        line: The progress text.
        text: Text of log entries; `None` shows no streams.
    """

    training_tracker: Any

    def __init__(self, line: ProgressLine, text: LogText | None = None):
        super().__init__()  # type: ignore[no-untyped-call]
        self._line, self._text = line, text

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Opens the bar."""
        super().on_train_begin(args, state, control, **kwargs)  # type: ignore[no-untyped-call]
        self.training_tracker = _Tracker(self._line, state.max_steps, self.training_tracker.inner_table[0])

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Updates the bar, a few times a second."""
        # The tracker counts steps; this total makes their fraction that of the data clock.
        share = self._line.share
        self.training_tracker.total = state.global_step / share if share > 0 else state.max_steps
        self.training_tracker.update(state.global_step, force_update=self._force_next_update)
        self._force_next_update = False

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        """Shows the entry in the table, and that of streams when it is due."""
        super().on_log(args, state, control, logs=logs, **kwargs)  # type: ignore[no-untyped-call]
        _, _, table = ("" if self._text is None else self._text.of(logs, state)).partition("\n")
        if table and self.training_tracker is not None:
            self.training_tracker.streams = f"<pre>{html.escape(table)}</pre>"


class _Tracker(NotebookTrainingTracker):
    """Bar and table, with the progress text beside the bar and the streams below it."""

    label: Any
    streams = ""  # their table

    def __init__(self, line: ProgressLine, num_steps: int, column_names: list[str]):
        super().__init__(num_steps, column_names)  # type: ignore[no-untyped-call]
        self._line = line

    def update_bar(self, value: int, comment: str | None = None) -> None:
        self.label = f"{self._line.share:.0%} {self._line.text(duration_text(self.elapsed_time or 0.0))}"
        self.label += self.streams
        self.display()  # type: ignore[no-untyped-call]
