"""What a run has to remember beside its mixture so that it goes on as if it had never stopped."""

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from mixer.utils.validation import finite_number, whole_number


@dataclass(frozen=True)
class Progress:
    """Where the training loop stands when a checkpoint is written.

    Args:
        seconds: Time trained so far.
        running_losses: Of each rank, the sum of the losses since the last log entry.
        logged_loss: The sum of the losses of all log entries.
        last_logged_step: Step of the last log entry.
        gradient_norm: That of the last step, if it is known.
        learning_rate: That of the last step.
        learning_rate_factor: What the batch size multiplies the learning rate by.
        epoch_end_is_left: Whether the checkpoint was written right after a step: if that one ended its epoch, then
            what the Trainer does at an epoch's end is still to be done.
        epoch_stops: Whether a callback has asked for the epoch's end.
        training_stops: Whether a callback has asked for the run's end.
        num_evaluations: Rows of the ledger on evaluations at this very step.
        recorder: What the next log entry will say of the streams; see `Recorder.state_dict`.
        methods: What it will say of methods.
        ledger_rows: Rows of each of the ledger's tables, on the rank that writes it.
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
        """Gives a rank its sum of losses.

        Args:
            rank: The rank.
            world_size: Number of ranks.

        Returns:
            What it had when it was saved; the mean over the ranks if there were more or fewer of them.
        """
        losses = self.running_losses
        return losses[rank] if len(losses) == world_size else math.fsum(losses) / len(losses)

    def state_dict(self) -> dict[str, Any]:
        """Gives everything as plain data; numbers that JSON has not are written as text."""
        return {name: _to_json(value) for name, value in asdict(self).items()}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> "Progress":
        """Reads a saved state.

        Args:
            state: What `state_dict` gave.

        Returns:
            The same again.

        Raises:
            ValueError: If a field is missing, unknown or of another kind.
        """
        own = {one.name for one in fields(cls)}
        missing, unknown = own - state.keys(), state.keys() - own
        if missing or unknown:
            raise ValueError(f"the saved progress lacks {sorted(missing)} and has {sorted(unknown)} too many")
        read = {name: _READERS[name](value, name) for name, value in state.items()}
        return cls(**read)


def _number(value: Any, name: str) -> float:
    """Reads a number, which may be none or infinite where it is written as text."""
    if isinstance(value, str) and value in ("nan", "inf", "-inf"):
        return float(value)
    return finite_number(value, name)


def _number_or_none(value: Any, name: str) -> float | None:
    return None if value is None else _number(value, name)


def _numbers(value: Any, name: str) -> list[float]:
    if not isinstance(value, list) or not value:
        raise ValueError(f"{name} must be a number for each rank, but {value!r} was saved")
    return [_number(one, name) for one in value]


def _flag(value: Any, name: str) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{name} must be true or false, but {value!r} was saved")
    return value


def _counts(value: Any, name: str) -> dict[str, int]:
    return {key: whole_number(count, f"{name}, {key}") for key, count in _mapping(value, name).items()}


def _mapping(value: Any, name: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{name} must be a mapping, but {value!r} was saved")
    return value


_READERS: dict[str, Callable[[Any, str], Any]] = {
    **dict.fromkeys(("seconds", "logged_loss", "learning_rate_factor"), _number),
    **dict.fromkeys(("gradient_norm", "learning_rate"), _number_or_none),
    **dict.fromkeys(("last_logged_step", "num_evaluations", "num_metrics"), whole_number),
    **dict.fromkeys(("epoch_end_is_left", "epoch_stops", "training_stops"), _flag),
    **dict.fromkeys(("recorder", "methods"), _mapping),
    "running_losses": _numbers,
    "ledger_rows": _counts,
}


def _to_json(value: Any) -> Any:
    if isinstance(value, list):
        return [_to_json(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
