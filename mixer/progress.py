"""What a run has to remember beside its mixture so that it goes on as if it had never stopped."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class Progress:
    """Where the training loop stands when a checkpoint is written.

    Args:
        seconds: Time trained so far.
        running_losses: Of each rank, the sum of the losses since the last log entry.
        logged_loss: The sum of the losses of all log entries.
        last_logged_step: Step of the last log entry.
        gradient_norm: That of the last update, if it is known.
        learning_rate: That of the last update.
        learning_rate_factor: What the batch size multiplies the learning rate by.
        epoch_end_is_left: Whether the checkpoint was written right after an update: if that one ended its epoch, then
            what the Trainer does at an epoch's end is still to be done.
        epoch_stops: Whether a callback has asked for the epoch's end.
        training_stops: Whether a callback has asked for the run's end.
        num_evaluations: Rows of the ledger on evaluations at this very step.
        recorder: What the next log entry will say of the streams; see `Recorder.state_dict`.
        methods: What it will say of methods; older versions had none.
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
    methods: dict[str, Any] = field(default_factory=dict)

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
            KeyError, TypeError: If a field is missing or unknown.
        """
        texts = {name: state[name] for name in ("seconds", "logged_loss", "gradient_norm", "learning_rate")}
        numbers: dict[str, Any] = {name: None if text is None else float(text) for name, text in texts.items()}
        return cls(**{**state, **numbers, "running_losses": [float(text) for text in state["running_losses"]]})


def _to_json(value: Any) -> Any:
    if isinstance(value, list):
        return [_to_json(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
