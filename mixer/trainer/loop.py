"""The Trainer's loop on the data clock: length, epochs, learning rate, and stopping a run."""

import contextlib
import signal
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import floor
from typing import Any

import numpy as np
from torch import Tensor
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_callback import CallbackHandler
from transformers.trainer_utils import SaveStrategy
from transformers.utils import logging

from mixer.distributed.signals import StopSignals, ending, which
from mixer.ledger.progress.bar import show_in_own_bars
from mixer.loading.step import StepBatch, StepCounts
from mixer.mixture.controller import Mixing
from mixer.mixture.learning_rate import LearningRate, check_scheduler
from mixer.trainer.checkpointing.files import step_of
from mixer.trainer.checkpointing.save import SavingMixin

logger = logging.get_logger(__name__)

_NO_BOUND = 2**31 - 1  # maximum epochs, or steps per epoch, of the loop: the clock ends them
_FLAGS = ("should_training_stop", "should_epoch_stop", "should_save", "should_evaluate", "should_log")
# Callbacks of these packages decide the same on all ranks.
_KNOWN = ("transformers", "trl", "mixer", "replay", "tasks")


class LoopMixin(SavingMixin):
    """A Trainer whose loop follows the clock of the mixture, and whose ranks stop, save and evaluate together.

    A signal ends the run after the step in progress. Signals travel in the collective before each forward. Requests of
    callbacks are compared after each step if some callbacks may make them on one rank only: the user's own.
    """

    _ended_at: int | None = None  # the step after which the clock last ended an epoch
    _stops_epoch: bool = False
    _handles_signals: bool = True
    _signals: StopSignals = StopSignals()
    _came: signal.Signals | None = None  # the signal that a rank had received when the present step was confirmed
    _stopped_by: signal.Signals | None = None  # the signal that ended the run early
    _compares_control: bool = False

    def set_initial_training_values(self, args: TrainingArguments, dataloader: Any) -> tuple[Any, ...]:
        """Returns the length of the run by the mixture's clock; see `Trainer.set_initial_training_values`."""
        clock = self.mixing.clock
        max_steps, steps = clock.planned_steps, clock.steps_per_epoch
        if clock.budget.epochs is None:
            num_samples: float = max_steps * clock.batch_size
        else:
            num_samples = clock.epoch_size * clock.budget.epochs
        num_examples, total = self.num_examples(dataloader), self.get_total_train_batch_size(args)
        return self._num_epochs_bound, steps, num_examples, num_samples, total, steps, max_steps

    @property
    def _num_epochs_bound(self) -> int:
        clock = self.mixing.clock
        return _NO_BOUND if clock.budget.epochs is None else clock.planned_epochs

    def get_total_train_batch_size(self, args: TrainingArguments) -> int:
        """Returns the samples per step over all ranks; see `Trainer.get_total_train_batch_size`."""
        return super().get_total_train_batch_size(args) if self._mixing is None else self.mixing.clock.batch_size

    def _prepare_run(self) -> None:
        """Binds the learning-rate schedule to the clock."""
        super()._prepare_run()
        # DeepSpeed wraps the schedule, or creates it.
        scheduler: Any = getattr(self.lr_scheduler, "scheduler", self.lr_scheduler)
        if not self.mixing.clock.counts_steps:
            check_scheduler(scheduler)
        self._learning_rate = LearningRate(scheduler)

    def _init_training_state(
        self, max_steps: int, num_update_steps_per_epoch: int, num_train_epochs: int, *args: Any, **kwargs: Any
    ) -> Any:
        with self._loop_arguments():
            return super()._init_training_state(
                max_steps, num_update_steps_per_epoch, self.mixing.clock.planned_epochs, *args, **kwargs
            )

    def _run_epoch(self, *args: Any, **kwargs: Any) -> None:
        kwargs["num_update_steps_per_epoch"] = _NO_BOUND
        with self._loop_arguments():
            super()._run_epoch(*args, **kwargs)  # type: ignore[no-untyped-call]
        self._close_epoch()

    def _close_epoch(self) -> None:
        """Ends the clock's epoch if a callback ended the loop's, and the run after the planned epochs."""
        clock = self.mixing.clock
        if self.control.should_epoch_stop and clock.step_in_epoch:
            clock.end_epoch()
        if clock.counts_steps and clock.num_epochs_done >= clock.planned_epochs:
            self.control.should_training_stop = True  # the Trainer's loop would also have no epoch left

    def _loop_arguments(self) -> contextlib.AbstractContextManager[None]:
        """Makes the loop see one batch per step, and skip nothing: the loader is already at the right position."""
        return self._arguments_held(gradient_accumulation_steps=1, ignore_data_skip=True)

    def get_batch_samples(self, *args: Any, **kwargs: Any) -> tuple[list[Any], Tensor | int | None]:
        """Loads the next step and sets its learning rate; see `Trainer.get_batch_samples`."""
        batch, num_items = super().get_batch_samples(*args, **kwargs)
        if batch:
            self._set_learning_rate()
        else:  # the rest of the epoch was dropped, or the streams are exhausted
            self._show_place()
            self._show_length()
            self._stop_epoch()
        return batch, num_items

    def _set_learning_rate(self) -> None:
        """Sets the learning rate by the clock; if that counts steps, the Trainer sets it."""
        mixing, learning_rate = self.mixing, self._learning_rate
        if learning_rate is not None and not mixing.clock.counts_steps:
            learning_rate.place(mixing.clock.schedule_position, mixing.learning_rate_factor)

    def _get_grad_norm(self, *args: Any, **kwargs: Any) -> Any:
        self._gradient_norm = super()._get_grad_norm(*args, **kwargs)  # type: ignore[no-untyped-call]
        return self._gradient_norm

    def _show_place(self) -> None:
        """Sets the Trainer's epoch, which it would compute from a count of steps."""
        self.state.epoch = self.mixing.clock.epoch

    def _show_length(self) -> None:
        """Sets the Trainer's number of steps, as far as it is known, for callbacks and progress bars."""
        clock = self.mixing.clock
        if not clock.counts_steps:
            self.state.max_steps = clock.max_steps

    def _stop_epoch(self) -> None:
        """Ends the loop's present epoch; the flag is reset before callbacks see it."""
        self._stops_epoch = not self.control.should_epoch_stop
        self.control.should_epoch_stop = True

    def _take_stop_back(self) -> None:
        if self._stops_epoch:
            self._stops_epoch = self.control.should_epoch_stop = False

    # ---- Signals, and requests of callbacks ----

    def train(self, *args: Any, **kwargs: Any) -> Any:
        """Trains until the run is finished or a signal arrives; see `Trainer.train`.

        Raises:
            RunTerminated: After a SIGTERM or SIGUSR1, once the run is saved; a `SystemExit`.
            RunInterrupted: After a SIGINT, likewise; a `KeyboardInterrupt`.
        """
        self._came, self._stopped_by, self._signals = None, None, StopSignals()
        with self._signals if self._handles_signals else contextlib.nullcontext():
            result = super().train(*args, **kwargs)
            self._finish_run()
        if not self._handles_signals:
            return result
        # A signal after the last step has no step to stop, but ends the script after the run.
        number = self._stopped_by or which(self._rank_sync.greatest(np.array(self._signals.flags)))
        if number is None:
            return result
        step, outcome = self.state.global_step, ". Nothing was saved: save_strategy is 'no'."
        if self._holds_step:
            way_on = "Resume with --resume auto or train(resume_from_checkpoint=True)."
            outcome = f"; {self._last_checkpoint} contains it. {way_on}"
        message = f"{number.name} ended the run after step {step}{outcome}"
        if self._stopped_by is None:
            message = f"{number.name} arrived after the run had finished, at step {step}."
        raise ending(message, number)

    def _begin_run(self) -> None:
        super()._begin_run()
        are_known = all(type(one).__module__.partition(".")[0] in _KNOWN for one in self.callback_handler.callbacks)
        self._compares_control = bool(self._rank_sync.most(int(not are_known)))

    def _finish_run(self) -> None:
        """Called when the loop has ended without an error."""

    def _contents(self, batch: StepBatch) -> StepCounts:
        return replace(super()._contents(batch), signals=self._signals.flags)

    def _load_and_confirm(self, load: Callable[[], StepBatch | None]) -> StepBatch | None:
        batch = super()._load_and_confirm(load)
        self._came = which(self._step_counts.signals)
        return batch

    def _maybe_log_save_evaluate(
        self, tr_loss: Any, grad_norm: Any, model: Any, trial: Any, *args: Any, **kwargs: Any
    ) -> None:
        # The loop calls this after every step and once more at an epoch's end, which is left to the resumed run if a
        # signal has ended this one.
        if self._stopped_by is not None:
            return
        self._agree_on_control()
        if self._came is not None and not self.control.should_training_stop:
            self._stopped_by, self.control.should_save = self._came, self._saves
        calls_back = self.control.should_log or self.control.should_evaluate or self.control.should_save
        super()._maybe_log_save_evaluate(tr_loss, grad_norm, model, trial, *args, **kwargs)
        step = self.state.global_step
        if self.mixing.clock.at_epoch_end and step != self._ended_at:
            self._ended_at = step
            self._stop_epoch()
        if calls_back:
            self._agree_on_control()
        if self._stopped_by is not None:
            if self._saves and not self._holds_step:  # an evaluation has reset the flag
                self._save_checkpoint(model, trial)
            # Only now: a run resumed from a checkpoint with this flag would end at once.
            self.control.should_training_stop = True

    def _agree_on_control(self) -> None:
        if not self._compares_control:
            return
        own = np.array([getattr(self.control, name) for name in _FLAGS], dtype=np.int64)
        for name, flag in zip(_FLAGS, self._rank_sync.greatest(own).tolist(), strict=True):
            setattr(self.control, name, bool(flag))

    @property
    def _saves(self) -> bool:
        return bool(self.args.save_strategy != SaveStrategy.NO)

    @property
    def _holds_step(self) -> bool:
        return self._last_checkpoint is not None and step_of(self._last_checkpoint) == self.state.global_step

    def _finalize_training(self, trial: Any, num_train_samples: float, start_time: float) -> Any:
        clock = self.mixing.clock
        if not clock.counts_steps and clock.step:  # the Trainer multiplies by the share of max_steps that was done
            num_train_samples = clock.num_samples * self.state.max_steps / clock.step
        # After a signal the Trainer would load the best model and delete all other checkpoints.
        is_early = self._stopped_by is not None
        with self._arguments_held(**({"load_best_model_at_end": False, "save_total_limit": None} if is_early else {})):
            return super()._finalize_training(trial, num_train_samples, start_time)  # type: ignore[no-untyped-call]


@dataclass(eq=False)
class MixingCallback(TrainerCallback):
    """Closes each step: the policy decides, the ledger is written, the epoch is updated.

    It runs before all other callbacks, so that they see the new state and their changes apply to the next step.

    Args:
        begin: Prepares the parts of the run, and restores its progress after the Trainer has reset it.
        close_step: Records the step that was just trained, and updates the epoch.
        end_epoch: Called at the end of the loop's epoch, before the other callbacks.
        mixing: The controller of the mixture.
        handler: The trainer's callbacks, which may include a progress bar of the user.
    """

    begin: Callable[[], None]
    close_step: Callable[[], None]
    end_epoch: Callable[[], None]
    mixing: Mixing
    handler: CallbackHandler

    def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
        """Prepares the run."""
        self.begin()

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl:
        """Closes the step, and ends the run if the streams are exhausted."""
        clock = self.mixing.clock
        before = clock.progress
        self.close_step()
        if not clock.counts_steps:
            state.max_steps = clock.max_steps
            _show_intervals(args, state, before, clock.progress)
        if self.mixing.is_exhausted:
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
        show_in_own_bars(self.handler.callbacks, state.max_steps, self.mixing)
        return control

    def on_epoch_end(self, *args: Any, **kwargs: Any) -> None:
        """Resets the flag that ended the loop's epoch."""
        self.end_epoch()


def _show_intervals(args: TrainingArguments, state: TrainerState, before: float, after: float) -> None:
    """Sets the next step for logging, evaluation and saving if the interval is a share of a run of unknown length.

    The Trainer acts at multiples of these numbers: now, if a multiple of the share was passed.
    """
    for kind in ("logging", "eval", "save"):
        share = getattr(args, f"{kind}_steps")
        if share is not None and 0 < share < 1:
            is_due = floor(after / share + 1e-9) > floor(before / share + 1e-9)
            setattr(state, f"{kind}_steps", state.global_step + (not is_due))
