"""Interface of experiment trackers, and adapters for MLflow, TensorBoard, Trackio and Weights & Biases."""

import importlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from mixer.ledger.trackers.description import Names, RunText

# A file store keeps the Trainer's `loss` in a file of that name, which cannot also be a folder.
_RENAMED = {"loss": "stream_loss", "eval_loss": "stream_eval_loss"}
_IN_ONE_CHART = ("loss", "eval_loss", "weight", "coverage", "count", "gradient_norm")


class Tracker(ABC):
    """A tracker beside the Trainer's own callback for it, which opens and closes its runs.

    Args:
        callback: The Trainer's callback.
    """

    def __init__(self, callback: Any):
        self._callback = callback

    @property
    @abstractmethod
    def is_open(self) -> bool:
        """Whether it has an open run."""

    @abstractmethod
    def begin(self, run: RunText) -> None:
        """Records the description of the run."""

    @abstractmethod
    def log(self, entries: Mapping[str, float], step: int) -> None:
        """Records a log entry, just before the Trainer's own if a run is open.

        Args:
            entries: Values by name, with their group.
            step: Number of steps done.
        """

    def told_apart(self, logs: dict[str, Any]) -> dict[str, Any]:
        """Returns the entries that the Trainer's callback logs, by names that it does not merge with each other."""
        return logs

    @abstractmethod
    def end(self, summary: Callable[[], str], page: Callable[[], Path | None]) -> None:
        """Records the results.

        Args:
            summary: Returns a table in Markdown.
            page: Returns the path of the report page, which is deleted afterwards; `None` if there is none.
        """


class MLflow(Tracker):
    """Logs grouped metrics, parameters, and recipe, streams and report page as artifacts."""

    def __init__(self, callback: Any):
        super().__init__(callback)
        self._mlflow: Any = importlib.import_module("mlflow")
        self._names = Names(r"[^-\w. ]", longest=240)
        self._names_of_callback = Names(r"[^-0-9A-Za-z_. :]", longest=240)  # as it replaces them

    @property
    def is_open(self) -> bool:
        """Whether there is an active run."""
        return self._mlflow.active_run() is not None

    def begin(self, run: RunText) -> None:
        """Logs two files and parameters; a resumed run keeps the parameters that it has."""
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

    def told_apart(self, logs: dict[str, Any]) -> dict[str, Any]:
        """See the base class."""
        return {self._names_of_callback.of(name): value for name, value in logs.items()}

    def end(self, summary: Callable[[], str], page: Callable[[], Path | None]) -> None:
        """Logs the report page as an artifact."""
        path = page()
        if path is not None:
            self._mlflow.log_artifact(str(path), "mixture")


def _renamed(name: str) -> str:
    group, _, rest = name.partition("/")
    return f"{_RENAMED.get(group, group)}/{rest}"


class TensorBoard(Tracker):
    """Logs grouped scalars, one chart of all streams per group, and texts."""

    def __init__(self, callback: Any):
        super().__init__(callback)
        self._names = Names(r"[^-/\w.]", longest=250)
        self._names_of_callback = Names(r"[^-/\w.]", longest=250)

    @property
    def is_open(self) -> bool:
        """Whether its file is open."""
        return self._callback.tb_writer is not None

    def begin(self, run: RunText) -> None:
        """Writes recipe and streams as texts, and the layout of charts (tab Custom Scalars)."""
        writer = self._callback.tb_writer
        language = "json" if run.recipe is None else "yaml"
        writer.add_text("mixture/recipe", f"```{language}\n{run.recipe_text}\n```")
        writer.add_text("mixture/streams", run.stream_table)
        writer.add_custom_scalars({"streams": {group: ["Multiline", [f"^{group}/"]] for group in _IN_ONE_CHART}})

    def log(self, entries: Mapping[str, float], step: int) -> None:
        """Writes scalars."""
        for name, value in entries.items():
            self._callback.tb_writer.add_scalar(self._names.of(name), value, step)

    def told_apart(self, logs: dict[str, Any]) -> dict[str, Any]:
        """See the base class; torch's writer takes every name, and that of tensorboardX replaces characters."""
        replaces = type(self._callback.tb_writer).__module__.startswith("tensorboardX")
        return {self._names_of_callback.of(name): value for name, value in logs.items()} if replaces else logs

    def end(self, summary: Callable[[], str], page: Callable[[], Path | None]) -> None:
        """Writes the summary as text."""
        self._callback.tb_writer.add_text("mixture/summary", summary())


class Trackio(Tracker):
    """Logs grouped values, the config, and the report page as an artifact."""

    def __init__(self, callback: Any):
        super().__init__(callback)
        self._trackio: Any = importlib.import_module("trackio")

    @property
    def is_open(self) -> bool:
        """Whether there is a run."""
        return self._trackio.context_vars.current_run.get() is not None

    def begin(self, run: RunText) -> None:
        """Updates the config, which is sent with the first values."""
        self._trackio.config.update(run.config)

    def log(self, entries: Mapping[str, float], step: int) -> None:
        """Logs values in a separate row, on the axis of the Trainer's rows."""
        self._trackio.log({**entries, "train/global_step": step})

    def end(self, summary: Callable[[], str], page: Callable[[], Path | None]) -> None:
        """Logs the report page as an artifact of type `report`."""
        path = page()
        if path is not None:
            self._trackio.log_artifact(str(path), name="mixture-report", type="report")


class WeightsAndBiases(Tracker):
    """Logs grouped values, the clock as selectable axes, the config as a tree, and the report page as an artifact."""

    def __init__(self, callback: Any):
        super().__init__(callback)
        self._wandb: Any = importlib.import_module("wandb")

    @property
    def is_open(self) -> bool:
        """Whether there is a run."""
        return self._wandb.run is not None

    def begin(self, run: RunText) -> None:
        """Updates the config, and declares the data clock as axes for panels."""
        self._wandb.run.config.update(run.config, allow_val_change=True)
        for name in ("epoch", "samples", "tokens"):
            self._wandb.run.define_metric(f"clock/{name}")

    def log(self, entries: Mapping[str, float], step: int) -> None:
        """Adds values to the row of the Trainer's own entry, so that they share axes."""
        self._wandb.run.log(dict(entries), commit=False)

    def end(self, summary: Callable[[], str], page: Callable[[], Path | None]) -> None:
        """Logs the report page as an artifact of type `report`."""
        path = page()
        if path is not None:
            artifact = self._wandb.Artifact(f"mixture-report-{self._wandb.run.id}", type="report")
            artifact.add_file(str(path))
            self._wandb.run.log_artifact(artifact)
