"""TensorBoard."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from mixer.ledger.trackers.naming import Names
from mixer.ledger.trackers.run_text import RunText
from mixer.ledger.trackers.tracker import Tracker

_IN_ONE_CHART = ("loss", "eval_loss", "weight", "coverage", "count", "gradient_norm")


class TensorBoard(Tracker):
    """Scalars by group, a chart for each group with all streams in it, and texts."""

    def __init__(self, callback: Any):
        super().__init__(callback)
        self._names = Names(r"[^-/\w.]", longest=250)

    @property
    def is_open(self) -> bool:
        """Whether its file is open."""
        return self._callback.tb_writer is not None

    def begin(self, run: RunText) -> None:
        """Writes recipe and streams as texts, and which curves belong into one chart (the tab Custom Scalars)."""
        writer = self._callback.tb_writer
        language = "json" if run.recipe is None else "yaml"
        writer.add_text("mixture/recipe", f"```{language}\n{run.recipe_text}\n```")
        writer.add_text("mixture/streams", run.stream_table)
        writer.add_custom_scalars({"streams": {group: ["Multiline", [f"^{group}/"]] for group in _IN_ONE_CHART}})

    def log(self, entries: Mapping[str, float], step: int) -> None:
        """Writes scalars."""
        for name, value in entries.items():
            self._callback.tb_writer.add_scalar(self._names.of(name), value, step)

    def end(self, summary: Callable[[], str], page: Callable[[], Path | None]) -> None:
        """Writes the summary as a text."""
        self._callback.tb_writer.add_text("mixture/summary", summary())
