"""Optimizer state carried from one task to the next."""

from pathlib import Path
from typing import Any

import torch

from mixer import MixingTrainer
from tasks.heads import Head

_FILE = "optimizer.pt"


class KeptOptimizer:
    """The optimizer state between two tasks; `head` widens it if the model has grown."""

    def __init__(self, head: Head):
        self._head = head
        self._state: Any = None

    def take(self, trainer: MixingTrainer) -> None:
        """Takes the state of a trainer at the end of its task."""
        optimizer: Any = trainer.optimizer
        self._state = getattr(optimizer, "optimizer", optimizer).state_dict()  # without accelerate's wrapper

    def give(self, trainer: MixingTrainer) -> None:
        """Creates an optimizer with this state for a trainer, at the learning rates of its arguments."""
        optimizer = trainer.create_optimizer()
        rates = [group["lr"] for group in optimizer.param_groups]
        optimizer.load_state_dict(self._head.widen(self._state, optimizer))
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate  # a schedule has left it where the last task ended
            group.pop("initial_lr", None)

    def save(self, folder: Path) -> None:
        """Writes the state, if there is one."""
        if self._state is not None:
            torch.save(self._state, folder / _FILE)

    def load(self, folder: Path) -> None:
        """Reads the state."""
        self._state = torch.load(folder / _FILE, map_location="cpu", weights_only=True)
