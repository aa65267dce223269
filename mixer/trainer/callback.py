"""The callback of a mixing trainer: it closes every step before the other callbacks see it."""

from collections.abc import Callable
from math import floor
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.utils import logging

from mixer.ledger.progress.bar import show_in_own_bars
from mixer.mixture.controller import Mixing

logger = logging.get_logger(__name__)


class MixingCallback(TrainerCallback):
    """Closes each step: the policy decides, the ledger is written, the epoch is updated.

    It runs before all other callbacks, so that they see the new state and their changes apply to the next step.

    Args:
        begin: Restores the progress of the run after the Trainer has reset it.
        close_step: Records the step that was just trained.
        show_place: Updates the epoch.
        mixing: Returns the controller of the present run.
        end_epoch: Called at the end of the loop's epoch, before the other callbacks.
        callbacks: Returns the trainer's callbacks, which may include a progress bar of the user.
    """

    def __init__(
        self,
        begin: Callable[[], None],
        close_step: Callable[[], None],
        show_place: Callable[[], None],
        mixing: Callable[[], Mixing],
        end_epoch: Callable[[], None],
        callbacks: Callable[[], list[TrainerCallback]],
    ):
        self._begin = begin
        self._close_step = close_step
        self._show_place = show_place
        self._mixing = mixing
        self._end_epoch = end_epoch
        self._callbacks = callbacks

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Restores the progress of the run."""
        self._begin()

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl:
        """Closes the step, and ends the run if the streams are exhausted."""
        before = self._mixing().clock.progress
        self._close_step()
        mixing = self._mixing()
        clock = mixing.clock
        self._show_place()
        if not clock.counts_steps:
            state.max_steps = clock.max_steps
            _show_intervals(args, state, before, clock.progress)
        if mixing.is_exhausted:
            if state.global_step < state.max_steps and state.is_world_process_zero:
                logger.warning(
                    "The streams are exhausted after %d of %d steps; the learning-rate schedule was planned for all of "
                    "them.",
                    state.global_step,
                    state.max_steps,
                )
            # The Trainer then evaluates and saves as after its last step.
            state.max_steps = state.global_step
            control.should_training_stop = True
        show_in_own_bars(self._callbacks(), state.max_steps, mixing)
        return control

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl:
        """Resets the flag that ended the loop's epoch."""
        self._end_epoch()
        return control


def _show_intervals(args: TrainingArguments, state: TrainerState, before: float, after: float) -> None:
    """Sets the next step for logging, evaluation and saving if the interval is a share of a run of unknown length.

    The Trainer acts at multiples of these numbers: now, if a multiple of the share was passed.
    """
    for kind in ("logging", "eval", "save"):
        share = getattr(args, f"{kind}_steps")
        if share is not None and 0 < share < 1:
            is_due = floor(after / share + 1e-9) > floor(before / share + 1e-9)
            setattr(state, f"{kind}_steps", state.global_step + (not is_due))
