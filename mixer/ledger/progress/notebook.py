"""Progress bar in notebooks."""

from typing import Any

from transformers.utils.notebook import NotebookProgressCallback, NotebookTrainingTracker

from mixer.ledger.progress.callback import ProgressLine
from mixer.utils.text import duration_text


class NotebookMixtureProgress(NotebookProgressCallback):
    """The Trainer's notebook bar and table, with the bar based on the data clock.

    Args:
        line: The progress text.
    """

    training_tracker: Any

    def __init__(self, line: ProgressLine):
        super().__init__()  # type: ignore[no-untyped-call]
        self._line = line

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


class _Tracker(NotebookTrainingTracker):
    """Bar and table, with the progress text beside the bar."""

    label: Any

    def __init__(self, line: ProgressLine, num_steps: int, column_names: list[str]):
        super().__init__(num_steps, column_names)  # type: ignore[no-untyped-call]
        self._line = line

    def update_bar(self, value: int, comment: str | None = None) -> None:
        self.label = f"{self._line.share:.0%} {self._line.text(duration_text(self.elapsed_time or 0.0))}"
        self.display()  # type: ignore[no-untyped-call]
