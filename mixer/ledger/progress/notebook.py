"""Progress bar and table of streams in notebooks."""

import html
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

from IPython.core.getipython import get_ipython
from IPython.display import HTML, display
from transformers.utils.notebook import NotebookProgressCallback, NotebookTrainingTracker, text_to_html_table

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
        self._scores = _Scores()

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

    def on_prediction_step(self, *args: Any, **kwargs: Any) -> None:
        """Updates the bar of an evaluation or prediction."""
        with self._shown_once():
            super().on_prediction_step(*args, **kwargs)  # type: ignore[no-untyped-call]

    def on_evaluate(self, args: Any, state: Any, control: Any, metrics: Any = None, **kwargs: Any) -> None:
        """Adds the metrics of a set to the table."""
        with self._shown_once({name.partition("_")[2] for name in (metrics or {}).keys() - {"epoch", "total_flos"}}):
            super().on_evaluate(args, state, control, metrics=metrics, **kwargs)  # type: ignore[no-untyped-call]

    def on_predict(self, *args: Any, **kwargs: Any) -> None:
        """Takes the bar away."""
        with self._shown_once():
            self.training_tracker.remove_child()
        self.prediction_bar = None

    @contextmanager
    def _shown_once(self, metrics: Collection[str] = ()) -> Iterator[None]:
        """Shows all sets of an evaluation outside of training in one output: the Trainer has two outputs a set."""
        if self.training_tracker is not None:
            yield
            return
        if self._scores.cell != _cell() or not self._scores.metrics.isdisjoint(metrics):  # another evaluation
            self._scores.remove_child()  # type: ignore[no-untyped-call]
            self._scores = _Scores()
        self._scores.metrics.update(metrics)
        self.training_tracker = self._scores
        try:
            yield
        finally:
            self.training_tracker = None


class _Escaped(NotebookTrainingTracker):
    """The Trainer's bar and table, in which names of sets and metrics are text, not HTML."""

    def write_line(self, values: dict[str, Any]) -> None:
        escaped = {
            html.escape(name): html.escape(value) if isinstance(value, str) else value for name, value in values.items()
        }
        super().write_line(escaped)  # type: ignore[no-untyped-call]


class _Tracker(_Escaped):
    """Bar and table, with the progress text beside the bar and the streams below it."""

    label: Any
    streams = ""  # their table

    def __init__(self, line: ProgressLine, num_steps: int, column_names: list[str]):
        super().__init__(num_steps, column_names)  # type: ignore[no-untyped-call]
        self._line = line

    def update_bar(self, value: int, comment: str | None = None) -> None:
        text = self._line.text(duration_text(self.elapsed_time or 0.0))
        self.label = f"{self._line.share:.0%} {html.escape(text)}{self.streams}"
        self.display()  # type: ignore[no-untyped-call]


class _Scores(_Escaped):
    """Bar and table of an evaluation outside of training."""

    output: Any
    child_bar: Any
    inner_table: Any

    def __init__(self) -> None:
        super().__init__(0)  # type: ignore[no-untyped-call]
        self.cell, self.metrics = _cell(), set[str]()

    def display(self) -> None:
        shown = "" if self.inner_table is None else text_to_html_table(self.inner_table)  # type: ignore[no-untyped-call]
        shown += "" if self.child_bar is None else self.child_bar.html_code
        if self.output is not None:
            self.output.update(HTML(shown))  # type: ignore[no-untyped-call]
        elif shown:
            self.output = display(HTML(shown), display_id=True)  # type: ignore[no-untyped-call]


def _cell() -> int | None:
    """Number of the notebook's cell that runs; `None` outside of a notebook."""
    shell = get_ipython()
    return None if shell is None else shell.execution_count
