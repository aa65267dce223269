"""Weights & Biases."""

import importlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from mixer.ledger.trackers.run_text import RunText
from mixer.ledger.trackers.tracker import Tracker


class WeightsAndBiases(Tracker):
    """Panels by group, the clock as axes to choose from, the config as a tree, the page as an artifact."""

    def __init__(self, callback: Any):
        super().__init__(callback)
        self._wandb: Any = importlib.import_module("wandb")

    @property
    def is_open(self) -> bool:
        """Whether there is a run."""
        return self._wandb.run is not None

    def begin(self, run: RunText) -> None:
        """Steps the config, and declares the data clock, over which panels can be drawn."""
        self._wandb.run.config.update(run.config, allow_val_change=True)
        for name in ("epoch", "samples", "tokens"):
            self._wandb.run.define_metric(f"clock/{name}")

    def log(self, entries: Mapping[str, float], step: int) -> None:
        """Puts values into the row that the Trainer's own entry completes: there they share their axes."""
        self._wandb.run.log(dict(entries), commit=False)

    def end(self, summary: Callable[[], str], page: Callable[[], Path | None]) -> None:
        """Logs the page as an artifact of type `report`."""
        path = page()
        if path is not None:
            artifact = self._wandb.Artifact(f"mixture-report-{self._wandb.run.id}", type="report")
            artifact.add_file(str(path))
            self._wandb.run.log_artifact(artifact)
