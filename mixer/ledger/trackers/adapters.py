"""What experiment trackers are told beside the Trainer's own entries: the streams' values and the run's description."""

import importlib
import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from mixer.ledger.trackers.tracked_settings import Names

# A file store keeps the Trainer's `loss` in a file of that name, which cannot also be a folder.
_RENAMED = {"loss": "stream_loss", "eval_loss": "stream_eval_loss"}


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
    def begin(self, config: dict[str, Any]) -> None:
        """Records the description of the run and its recipe, as plain data without secrets."""

    @abstractmethod
    def log(self, entries: Mapping[str, float], step: int) -> None:
        """Records a log entry, just before the Trainer's own if a run is open.

        Args:
            entries: Values by name, with their group: trackers put names with the same beginning together.
            step: Number of steps done.
        """

    def distinct_names(self, logs: dict[str, Any]) -> dict[str, Any]:
        """Returns the entries that the Trainer's callback logs, by names that it does not merge with each other."""
        return logs


class MLflow(Tracker):
    """Logs grouped metrics; the description is an artifact."""

    def __init__(self, callback: Any):
        super().__init__(callback)
        self._mlflow: Any = importlib.import_module("mlflow")
        self._names = Names(r"[^-\w. ]", longest=240)
        self._names_of_callback = Names(r"[^-0-9A-Za-z_. :]", longest=240)  # as it replaces them

    @property
    def is_open(self) -> bool:
        """Whether there is an active run."""
        return self._mlflow.active_run() is not None

    def begin(self, config: dict[str, Any]) -> None:
        """Logs a file."""
        self._mlflow.log_dict(config, "mixture.json")

    def log(self, entries: Mapping[str, float], step: int) -> None:
        """Logs metrics."""
        named = {self._names.of(_renamed(name)): float(value) for name, value in entries.items()}
        self._mlflow.log_metrics(named, step=step)

    def distinct_names(self, logs: dict[str, Any]) -> dict[str, Any]:
        """See the base class."""
        return {self._names_of_callback.of(name): value for name, value in logs.items()}


def _renamed(name: str) -> str:
    group, _, rest = name.partition("/")
    return f"{_RENAMED.get(group, group)}/{rest}"


class TensorBoard(Tracker):
    """Logs grouped scalars; the description is a text."""

    def __init__(self, callback: Any):
        super().__init__(callback)
        self._names = Names(r"[^-/\w.]", longest=250)
        self._names_of_callback = Names(r"[^-/\w.]", longest=250)

    @property
    def is_open(self) -> bool:
        """Whether its file is open."""
        return self._callback.tb_writer is not None

    def begin(self, config: dict[str, Any]) -> None:
        """Writes a text."""
        self._callback.tb_writer.add_text("mixture", f"```json\n{json.dumps(config, indent=2)}\n```")

    def log(self, entries: Mapping[str, float], step: int) -> None:
        """Writes scalars."""
        for name, value in entries.items():
            self._callback.tb_writer.add_scalar(self._names.of(name), value, step)

    def distinct_names(self, logs: dict[str, Any]) -> dict[str, Any]:
        """See the base class; torch's writer takes every name, and that of tensorboardX replaces characters."""
        replaces = type(self._callback.tb_writer).__module__.startswith("tensorboardX")
        return {self._names_of_callback.of(name): value for name, value in logs.items()} if replaces else logs


class Trackio(Tracker):
    """Logs grouped values; the description is part of the config."""

    def __init__(self, callback: Any):
        super().__init__(callback)
        self._trackio: Any = importlib.import_module("trackio")

    @property
    def is_open(self) -> bool:
        """Whether there is a run."""
        return self._trackio.context_vars.current_run.get() is not None

    def begin(self, config: dict[str, Any]) -> None:
        """Updates the config, which is sent with the first values."""
        self._trackio.config.update(config)

    def log(self, entries: Mapping[str, float], step: int) -> None:
        """Logs values in a separate row, on the axis of the Trainer's rows."""
        self._trackio.log({**entries, "train/global_step": step})


class WeightsAndBiases(Tracker):
    """Logs grouped values; the description is part of the config."""

    def __init__(self, callback: Any):
        super().__init__(callback)
        self._wandb: Any = importlib.import_module("wandb")

    @property
    def is_open(self) -> bool:
        """Whether there is a run."""
        return self._wandb.run is not None

    def begin(self, config: dict[str, Any]) -> None:
        """Updates the config."""
        self._wandb.run.config.update(config, allow_val_change=True)

    def log(self, entries: Mapping[str, float], step: int) -> None:
        """Adds values to the row of the Trainer's own entry, so that they share axes."""
        self._wandb.run.log(dict(entries), commit=False)
