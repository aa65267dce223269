"""Trackio."""

import importlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from mixer.ledger.trackers.run_text import RunText
from mixer.ledger.trackers.tracker import Tracker


class Trackio(Tracker):
    """Panels by group, the config, the page as an artifact."""

    def __init__(self, callback: Any):
        super().__init__(callback)
        self._trackio: Any = importlib.import_module("trackio")

    @property
    def is_open(self) -> bool:
        """Whether there is a run."""
        return self._trackio.context_vars.current_run.get() is not None

    def begin(self, run: RunText) -> None:
        """Steps the config, which goes out with the first values."""
        self._trackio.config.update(run.config)

    def log(self, entries: Mapping[str, float], step: int) -> None:
        """Logs values in a row of their own, with the axis that the Trainer's rows have."""
        self._trackio.log({**entries, "train/global_step": step})

    def end(self, summary: Callable[[], str], page: Callable[[], Path | None]) -> None:
        """Logs the page as an artifact of type `report`."""
        path = page()
        if path is not None:
            self._trackio.log_artifact(str(path), name="mixture-report", type="report")
