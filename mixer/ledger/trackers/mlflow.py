"""MLflow."""

import importlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from mixer.ledger.trackers.naming import Names
from mixer.ledger.trackers.run_text import RunText
from mixer.ledger.trackers.tracker import Tracker

# A store of files keeps the Trainer's `loss` in a file of that name, which can be no folder of others.
_RENAMED = {"loss": "stream_loss", "eval_loss": "stream_eval_loss"}


class MLflow(Tracker):
    """Metrics by group, parameters, and recipe, streams and page as artifacts."""

    def __init__(self, callback: Any):
        super().__init__(callback)
        self._mlflow: Any = importlib.import_module("mlflow")
        self._names = Names(r"[^-\w. ]", longest=240)

    @property
    def is_open(self) -> bool:
        """Whether there is an active run."""
        return self._mlflow.active_run() is not None

    def begin(self, run: RunText) -> None:
        """Logs parameters, those of a run that goes on only where it has none, and two files."""
        known = self._mlflow.get_run(self._mlflow.active_run().info.run_id).data.params
        longest = self._mlflow.utils.validation.MAX_PARAM_VAL_LENGTH
        new = {name: value[:longest] for name, value in run.parameters.items() if name not in known}
        self._mlflow.log_params(new)
        self._mlflow.log_text(run.recipe_text, f"mixture/recipe.{'json' if run.recipe is None else 'yaml'}")
        self._mlflow.log_text(run.stream_table, "mixture/streams.md")

    def log(self, entries: Mapping[str, float], step: int) -> None:
        """Logs metrics."""
        named = {self._names.of(_renamed(name)): float(value) for name, value in entries.items()}
        self._mlflow.log_metrics(named, step=step)

    def end(self, summary: Callable[[], str], page: Callable[[], Path | None]) -> None:
        """Logs the page as an artifact."""
        path = page()
        if path is not None:
            self._mlflow.log_artifact(str(path), "mixture")


def _renamed(name: str) -> str:
    group, _, rest = name.partition("/")
    return f"{_RENAMED.get(group, group)}/{rest}"
