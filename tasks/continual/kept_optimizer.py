"""An optimizer's state that goes on from one task's trainer to the next."""

from pathlib import Path
from typing import Any

import torch

from mixer import MixingTrainer
from tasks.heads import Head

_FILE = "optimizer.pt"


class KeptOptimizer:
    """The state between two tasks.

    Args:
        head: Says what becomes of the state where the model has grown.
    """

    def __init__(self, head: Head):
        self._head = head
        self._state: Any = None

    def take(self, trainer: MixingTrainer) -> None:
        """Takes the state at the end of a task.

        Args:
            trainer: The task's trainer.
        """
        optimizer: Any = trainer.optimizer
        self._state = getattr(optimizer, "optimizer", optimizer).state_dict()  # without accelerate's wrapper

    def give(self, trainer: MixingTrainer) -> None:
        """Gives a trainer an optimizer that goes on with the state, at the learning rates of the trainer's arguments.

        Args:
            trainer: The next task's trainer.
        """
        optimizer = trainer.create_optimizer()
        rates = [group["lr"] for group in optimizer.param_groups]
        optimizer.load_state_dict(self._head.widen(self._state, optimizer))
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate  # a schedule has left it where the last task ended
            group.pop("initial_lr", None)

    def save(self, folder: Path) -> None:
        """Writes the state, if there is one.

        Args:
            folder: Where a run writes what there is after a task.
        """
        if self._state is not None:
            torch.save(self._state, folder / _FILE)

    def load(self, folder: Path) -> None:
        """Reads the state.

        Args:
            folder: Where it was written.
        """
        self._state = torch.load(folder / _FILE, map_location="cpu", weights_only=True)
