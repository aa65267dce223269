"""The run's clock: how far it is, how large the next update is, and when an epoch ends."""

import math
from collections.abc import Mapping
from typing import Any


class Clock:
    """Counts a run in epochs of the mixture.

    With a constant batch size the clock is the Trainer's own count of steps, and all that it says is what the Trainer
    would say.

    Args:
        batch_size: Samples of an update, over all ranks.
        epoch_size: Samples of an epoch of the mixture.
        num_epochs: Budget in epochs; ignored where `max_steps` is given.
        max_steps: Budget in updates, or a value below 1 for none.
        drop_unit: Where the rest of an epoch is dropped, it is cut to a multiple of so many samples; 0 keeps the
            rest as a smaller update.
        max_samples: Samples after which all streams are exhausted, or `None`.
        pass_size: Samples of one accumulation step over all ranks, in which the Trainer counts an epoch; `None` takes
            the batch size.

    Raises:
        ValueError: If a number is below its least value, or dropping the rest leaves nothing of an epoch.
    """

    def __init__(
        self,
        batch_size: int,
        epoch_size: int,
        num_epochs: float,
        max_steps: int = -1,
        drop_unit: int = 0,
        max_samples: int | None = None,
        pass_size: int | None = None,
    ):
        if epoch_size < 1:
            raise ValueError(f"epoch_size must be at least 1 sample, got {epoch_size}.")
        if max_steps < 1 and not num_epochs > 0:
            raise ValueError(f"num_train_epochs must be above 0 where max_steps is not given, got {num_epochs}.")
        self.batch_size = batch_size
        self.epoch_size = epoch_size - (epoch_size % drop_unit if drop_unit else 0)
        if self.epoch_size < 1:
            raise ValueError(
                f"dataloader_drop_last drops everything: an epoch has {epoch_size} samples, fewer than the {drop_unit} "
                "of a batch over all ranks. Lower the batch size or keep the last batch."
            )
        self._pass_size = batch_size if pass_size is None else pass_size
        self.dropped_samples = epoch_size - self.epoch_size
        self.steps_per_epoch = -(-self.epoch_size // batch_size)
        self.num_epochs = num_epochs if max_steps < 1 else max_steps / self.steps_per_epoch
        self.max_steps = math.ceil(num_epochs * self.steps_per_epoch) if max_steps < 1 else max_steps
        if max_samples is not None:
            self.max_steps = min(self.max_steps, self._steps_for(max_samples))
        self.step = 0
        self.step_in_epoch = 0
        self._num_epochs_done = 0

    @property
    def progress(self) -> float:
        """Share of the run's budget that is done, in [0, 1]."""
        return min(1.0, self.step / self.max_steps)

    @property
    def epoch(self) -> float:
        """Number of epochs done, as the Trainer counts them."""
        return self._num_epochs_done + self._share(self.step_in_epoch)

    @property
    def epoch_progress(self) -> float:
        """Share of the present epoch that is done, in (0, 1] once the run has begun."""
        return 1.0 if self.at_epoch_end else self._share(self.step_in_epoch)

    @property
    def at_epoch_end(self) -> bool:
        """Whether the last update ended an epoch."""
        return self.step > 0 and self.step_in_epoch == 0

    @property
    def num_epochs_done(self) -> int:
        """Number of epochs that have ended."""
        return self._num_epochs_done

    def next_total(self) -> int:
        """Gives the size of the next update.

        Returns:
            Number of samples: the batch size, or what is left of the epoch.
        """
        return min(self.batch_size, self.epoch_size - self.step_in_epoch * self.batch_size)

    def tick(self) -> None:
        """Counts an update."""
        self.step += 1
        self.step_in_epoch += 1
        if self.step_in_epoch == self.steps_per_epoch:
            self.end_epoch()

    def end_epoch(self) -> None:
        """Ends the present epoch, be it complete or not."""
        self._num_epochs_done += 1
        self.step_in_epoch = 0

    def state_dict(self) -> dict[str, Any]:
        """Gives the state as plain data."""
        return {
            "step": self.step,
            "step_in_epoch": self.step_in_epoch,
            "num_epochs_done": self._num_epochs_done,
            "batch_size": self.batch_size,
            "epoch_size": self.epoch_size,
        }

    def load_state_dict(self, state: Mapping[str, Any], allow_inexact: bool = False) -> None:
        """Takes up a saved state.

        Args:
            state: What `state_dict` gave.
            allow_inexact: Goes on at the same step where epochs have other steps now.

        Raises:
            ValueError: If an epoch of the saved run had other steps.
        """
        own = self.state_dict()
        self.step = int(state["step"])
        self.step_in_epoch = int(state["step_in_epoch"])
        self._num_epochs_done = int(state["num_epochs_done"])
        for field in ("batch_size", "epoch_size"):
            if state[field] != own[field]:
                if not allow_inexact:
                    raise ValueError(f"{field} was {state[field]} when the run was saved and is {own[field]} now")
                self._num_epochs_done, self.step_in_epoch = divmod(self.step, self.steps_per_epoch)

    def _share(self, num_steps: int) -> float:
        num_samples = min(num_steps * self.batch_size, self.epoch_size)
        return -(-num_samples // self._pass_size) / -(-self.epoch_size // self._pass_size)

    def _steps_for(self, num_samples: int) -> int:
        epochs, rest = divmod(num_samples, self.epoch_size + self.dropped_samples)
        return epochs * self.steps_per_epoch + -(-min(rest, self.epoch_size) // self.batch_size)
