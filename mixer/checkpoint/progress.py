"""The position of the training loop, as a checkpoint keeps it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from mixer.utils.text import shortened
from mixer.utils.validation import finite_number, whole_number


@dataclass(frozen=True)
class Progress:
    """The position of the training loop when a checkpoint is written.

    Args:
        seconds: Training time so far.
        running_losses: For each rank, the sum of the losses since the last log entry.
        logged_loss: The sum of the losses of all log entries.
        last_logged_step: Step of the last log entry.
        gradient_norm: Gradient norm of the last step, if known.
        learning_rate: Learning rate of the last step.
        learning_rate_factor: Factor of the batch-size schedule on the learning rate.
        epoch_end_is_left: Whether the checkpoint was written right after a step: if that step ended its epoch, the
            Trainer's work at the end of the epoch is still to be done.
        epoch_stops: Whether a callback requested the end of the epoch.
        training_stops: Whether a callback requested the end of the run.
        num_evaluations: Rows of the ledger on evaluations at this very step.
        recorder: State of the next log entry for the streams; see `Recorder.state_dict`.
        methods: State of the next log entry for the methods.
        ledger_rows: Rows of each table of the ledger, on the rank that writes it.
        num_metrics: Rows of the ledger on metrics at this very step.
    """

    seconds: float
    running_losses: list[float]
    logged_loss: float
    last_logged_step: int
    gradient_norm: float | None
    learning_rate: float | None
    learning_rate_factor: float
    epoch_end_is_left: bool
    epoch_stops: bool
    training_stops: bool
    num_evaluations: int
    recorder: dict[str, Any]
    methods: dict[str, Any]
    num_metrics: int
    ledger_rows: dict[str, int] = field(default_factory=dict)

    def running_loss(self, rank: int, world_size: int) -> float:
        """Returns a rank's sum of losses; the mean over the saved ranks if their number has changed."""
        losses = self.running_losses
        return losses[rank] if len(losses) == world_size else math.fsum(losses) / len(losses)

    def state_dict(self) -> dict[str, Any]:
        """Returns the state as plain data; numbers that JSON cannot represent become text."""
        return {name: _to_json(value) for name, value in asdict(self).items()}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Progress:
        """Restores a saved state.

        Raises:
            ValueError: If a field is missing, unknown or of another kind.
        """
        names = {one.name for one in fields(cls)}
        missing, unknown = names - state.keys(), state.keys() - names
        if missing or unknown:
            raise ValueError(f"the saved progress lacks {sorted(missing)} and has the unknown fields {sorted(unknown)}")
        return cls(**{one.name: _CHECKS[str(one.type)](state[one.name], one.name) for one in fields(cls)})


def _to_json(value: Any) -> Any:
    if isinstance(value, list):
        return [_to_json(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _number(value: Any, name: str) -> float:
    return float(value) if value in ("nan", "inf", "-inf") else finite_number(value, name)


def _kind(kind: type, words: str) -> Callable[[Any, str], Any]:
    def checked(value: Any, name: str) -> Any:
        if not isinstance(value, kind) or value == []:
            raise ValueError(f"{name} must be {words}, but {shortened(repr(value))} was saved")
        return value

    return checked


_flag, _list, _mapping = _kind(bool, "true or false"), _kind(list, "a list of numbers"), _kind(dict, "a mapping")
# How a saved field of `Progress` is read, by its type.
_CHECKS: dict[str, Callable[[Any, str], Any]] = {
    "int": whole_number,
    "float": _number,
    "float | None": lambda value, name: None if value is None else _number(value, name),
    "bool": _flag,
    "list[float]": lambda value, name: [_number(one, name) for one in _list(value, name)],
    "dict[str, Any]": _mapping,
    "dict[str, int]": lambda value, name: {key: whole_number(one, name) for key, one in _mapping(value, name).items()},
}
