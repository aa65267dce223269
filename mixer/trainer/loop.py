"""The Trainer's loop on the data clock: length, epochs, learning rate, and stopping a run."""

import contextlib
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import floor
from typing import Any

import numpy as np
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_callback import CallbackHandler
from transformers.utils import logging

from mixer.distributed.signals import StopSignals, ending, which
from mixer.ledger.progress.bar import show_in_own_bars
from mixer.loading.learning_rate import ScheduledRate, check_scheduler
from mixer.run.hf_compat import load_random_state, log_save_evaluate, restore_loop, save_checkpoint
from mixer.run.state import Basis, Run
from mixer.trainer.save import Checkpointing, HeldArguments, Progress
from mixer.utils.errors import wrong_type
from mixer.utils.resume_hint import resume_hint
from mixer.utils.user_code import is_user_code

logger = logging.get_logger(__name__)

NO_BOUND = 2**31 - 1  # maximum epochs, or steps per epoch, of the loop: the clock ends them
_FLAGS = ("should_training_stop", "should_epoch_stop", "should_save", "should_evaluate", "should_log")


class LoopControl:
    """Makes the Trainer's loop follow the clock of the mixture, and ranks stop, save and evaluate together.

    A signal ends the run after the step in progress. Signals travel in the collective before each forward. Requests of
    callbacks are compared after each step if some callbacks may make them on one rank only: the user's own.

    Args:
        basis: The trainer, the plan of the run, the run and its ranks.
        checkpoints: Writes checkpoints.
        arguments: The training arguments.
    """

    def __init__(self, basis: Basis, checkpoints: Checkpointing, arguments: HeldArguments):
        self._trainer, plan, self._run, self._ranks = basis
        self._checkpoints, self._arguments = checkpoints, arguments
        self._handles_signals = plan.config.handle_signals
        self.stopped_by: signal.Signals | None = None  # the signal that ended the run early
        self._ended_at: int | None = None  # the step after which the clock last ended an epoch
        self._stops_epoch = False
        self._compares_control = False
        self._saved: Progress | None = None  # the loop's position in the checkpoint that the run resumes from
        self._was_stopped = False  # whether a callback stopped the run there before it finished
        self._ends_saved_epoch = False

    # ---- The length of the run, and its epochs ----

    @property
    def _num_epochs_bound(self) -> int:
        """Maximum epochs of the loop."""
        clock = self._run.mixing.clock
        return NO_BOUND if clock.budget.epochs is None else clock.planned_epochs

    def initial_values(self, args: TrainingArguments, dataloader: Any) -> tuple[Any, ...]:
        """Returns the length of the run by the mixture's clock; see `Trainer.set_initial_training_values`."""
        if self._trainer.is_in_train and dataloader is not self._run.loader:
            text = f"of {type(self._trainer).__name__} returns a {type(dataloader).__name__}, not that of "
            raise wrong_type(
                "get_train_dataloader", f"{text}super(): return that, and change the streams (preprocess, weights)."
            )
        clock = self._run.mixing.clock
        max_steps, steps = clock.planned_steps, clock.steps_per_epoch
        if clock.budget.epochs is None:
            num_samples: float = max_steps * clock.batch_size
        else:
            num_samples = clock.epoch_size * clock.budget.epochs
        total = self._trainer.get_total_train_batch_size(args)
        num_examples = self._trainer.num_examples(dataloader) if clock.has_length else int(num_samples)
        return self._num_epochs_bound, steps, num_examples, num_samples, total, steps, max_steps

    def first_epoch(self, begin: Callable[..., tuple[int, int]], *args: Any, **kwargs: Any) -> tuple[int, int]:
        """Returns the first epoch of the loop: that of the checkpoint if it is not finished.

        Args:
            begin: The Trainer's own, `Trainer._init_training_state`.
            *args: Its arguments.
            **kwargs: Its arguments.
        """
        with self._one_batch_a_step():
            begun = begin(*args, **kwargs)
        saved, mixing, state = self._saved, self._run.mixing, self._trainer.state
        clock = mixing.clock
        if saved is None:
            return begun
        mixing.drop_rest()  # for a batch size that was set right after the checkpoint was written
        self._run.show_length(state)
        if mixing.is_exhausted:
            state.max_steps = state.global_step
        is_done = clock.step >= state.max_steps or self._was_stopped
        if saved.epoch_end_is_left:
            self._ends_saved_epoch = is_done or clock.at_epoch_end or saved.epoch_stops
        elif saved.epoch_stops and clock.step_in_epoch:
            clock.end_epoch()
        if self._ends_saved_epoch:
            return clock.num_epochs_done - clock.at_epoch_end, 0
        return (self._num_epochs_bound if is_done else clock.num_epochs_done), 0

    def _one_batch_a_step(self) -> contextlib.AbstractContextManager[None]:
        """Makes the loop see one batch per step, and skip nothing: the loader is already at the right position."""
        return self._arguments.held(gradient_accumulation_steps=1, ignore_data_skip=True)

    def run_epoch(self, run_epoch: Callable[..., None], *args: Any, **kwargs: Any) -> None:
        """Runs an epoch of the loop, which the clock ends; or only the end of the one that a checkpoint has cut off."""
        if self._ends_saved_epoch:
            self._ends_saved_epoch = False
            self._end_saved_epoch(**kwargs)
        else:
            kwargs.update(num_update_steps_per_epoch=NO_BOUND, start_time=self._checkpoints.start_time)
            with self._one_batch_a_step():
                run_epoch(*args, **kwargs)
        self._close_epoch()

    def _end_saved_epoch(
        self, model: Any, epoch: int, trial: Any, ignore_keys_for_eval: Any, resume_from_checkpoint: str, **_: Any
    ) -> None:
        """Does the Trainer's work at the end of an epoch, if the checkpoint was written right before that."""
        trainer, saved = self._trainer, self._saved
        control, state = trainer.control, trainer.state
        assert saved is not None, "only a resumed run has a saved epoch"  # noqa: S101
        self._run.show_place(state)
        load_random_state(trainer, resume_from_checkpoint)
        self._ended_at = state.global_step
        control.should_log = control.should_evaluate = control.should_save = False
        control.should_epoch_stop = saved.epoch_stops
        is_done = self._run.mixing.clock.step >= state.max_steps
        control.should_training_stop = is_done or self._was_stopped
        self._checkpoints.note_step(saved.gradient_norm, saved.learning_rate)
        trainer.control = trainer.callback_handler.on_epoch_end(trainer.args, state, control)
        options = (model, trial, epoch, ignore_keys_for_eval, self._checkpoints.start_time)
        log_save_evaluate(trainer, saved.gradient_norm, options, saved.learning_rate)

    def _close_epoch(self) -> None:
        """Ends the clock's epoch if a callback ended the loop's, and the run after the planned epochs."""
        clock, control = self._run.mixing.clock, self._trainer.control
        if control.should_epoch_stop and clock.step_in_epoch:
            clock.end_epoch()
        if clock.is_step_based and clock.num_epochs_done >= clock.planned_epochs:
            control.should_training_stop = True  # the Trainer's loop would also have no epoch left

    def end_of_data(self) -> None:
        """Ends the epoch where no step is left: its rest was dropped, or the streams are exhausted."""
        self._run.show_place(self._trainer.state)
        self._run.show_length(self._trainer.state)
        self._stop_epoch()

    def _stop_epoch(self) -> None:
        """Ends the loop's present epoch; the flag is reset before callbacks see it."""
        control = self._trainer.control
        self._stops_epoch = not control.should_epoch_stop
        control.should_epoch_stop = True

    def clear_epoch_stop(self) -> None:
        """Resets the flag that ended the loop's epoch."""
        if self._stops_epoch:
            self._stops_epoch = self._trainer.control.should_epoch_stop = False

    # ---- A run ----

    def begin_run(self) -> None:
        """Finds out whether some callbacks may decide on one rank only."""
        callbacks = self._trainer.callback_handler.callbacks
        # Callbacks of libraries decide the same on all ranks.
        are_users = any(is_user_code(type(callback)) for callback in callbacks)
        self._compares_control = self._ranks.world_size > 1 and bool(self._ranks.max_over_ranks(int(are_users)))
        self._ended_at, self._stops_epoch = None, False
        self._saved, self._was_stopped, self._ends_saved_epoch = None, False, False

    def resume(self, saved: Progress, has_ended: bool) -> None:
        """Continues from a checkpoint, where the Trainer's loop next asks: `first_epoch`, `prepare`, `run_epoch`.

        Args:
            saved: The position of the loop.
            has_ended: Whether the run that wrote it finished: then it may be continued, although it was stopped.
        """
        self._saved, self._was_stopped = saved, saved.training_stops and not has_ended

    def prepare(self) -> None:
        """Binds the learning-rate schedule to the clock, once both exist, and restores what the Trainer has reset."""
        # DeepSpeed wraps the schedule, or creates it.
        scheduler: Any = getattr(self._trainer.lr_scheduler, "scheduler", self._trainer.lr_scheduler)
        if not self._run.mixing.clock.is_step_based:
            check_scheduler(scheduler)
        self._run.learning_rate = ScheduledRate(scheduler)
        self._run.show_length(self._trainer.state)
        self._checkpoints.start_clock(0.0 if self._saved is None else self._saved.seconds)
        if (saved := self._saved) is not None:
            running_loss = saved.running_loss(self._trainer.args.process_index, self._trainer.args.world_size)
            restore_loop(self._trainer, running_loss, saved.logged_loss, saved.last_logged_step)
            self._run.learning_rate.factor = saved.learning_rate_factor

    @contextlib.contextmanager
    def ending_by_signals(self) -> Iterator[None]:
        """Ends the process after a run that a signal has stopped.

        Raises:
            RunTerminated: After a SIGTERM or SIGUSR1, once the run is saved; a `SystemExit`.
            RunInterrupted: After a SIGINT, likewise; a `KeyboardInterrupt`.
        """
        self.stopped_by, self._run.signals = None, StopSignals()
        with self._run.signals if self._handles_signals else contextlib.nullcontext():
            yield
        if not self._handles_signals:
            return
        # A signal after the last step has no step to stop, but ends the script after the run.
        number = self.stopped_by or which(self._ranks.all_reduce_max(np.array(self._run.signals.flags)))
        if number is not None:
            raise ending(self._stop_in_words(number), number)

    def _stop_in_words(self, number: signal.Signals) -> str:
        step, outcome = self._trainer.state.global_step, ". Nothing was saved: save_strategy is 'no'."
        if self.stopped_by is None:
            return f"{number.name} arrived after the run had finished, at step {step}."
        if self._checkpoints.holds_step:
            outcome = f"; {self._checkpoints.last} contains it. Resume with {resume_hint()}."
        return f"{number.name} ended the run after step {step}{outcome}"

    def after_step(self, act: Callable[..., None], model: Any, trial: Any) -> None:
        """Logs, saves and evaluates on all ranks together after a step, and once more at an epoch's end.

        Args:
            act: What the Trainer does.
            model: The model as it is trained.
            trial: The trial of a hyperparameter search.
        """
        # An epoch's end is left to the resumed run if a signal has ended this one.
        if self.stopped_by is not None:
            return
        self.agree()
        control, came = self._trainer.control, which(self._run.step.counts.signals)
        if came is not None and not control.should_training_stop:
            self.stopped_by, control.should_save = came, self._checkpoints.is_on
        calls_back = control.should_log or control.should_evaluate or control.should_save
        act()
        step = self._trainer.state.global_step
        if self._run.mixing.clock.at_epoch_end and step != self._ended_at:
            self._ended_at = step
            self._stop_epoch()
        if calls_back:
            self.agree()
        if self.stopped_by is not None:
            if self._checkpoints.is_on and not self._checkpoints.holds_step:  # an evaluation has reset the flag
                save_checkpoint(self._trainer, model, trial)
            # Only now: a run resumed from a checkpoint with this flag would end at once.
            self._trainer.control.should_training_stop = True

    def agree(self) -> None:
        """Applies a request of one rank on all ranks."""
        if not self._compares_control:
            return
        control = self._trainer.control
        own = np.array([getattr(control, name) for name in _FLAGS], dtype=np.int64)
        for name, flag in zip(_FLAGS, self._ranks.all_reduce_max(own).tolist(), strict=True):
            setattr(control, name, bool(flag))

    def finalize(self, finalize: Callable[..., Any], trial: Any, num_train_samples: float) -> Any:
        """Sums up the whole run, its part before a checkpoint too; see `Trainer._finalize_training`."""
        clock, start_time = self._run.mixing.clock, self._checkpoints.start_time
        if not clock.is_step_based and clock.step:  # the Trainer multiplies by the share of max_steps that was done
            num_train_samples = clock.num_samples * self._trainer.state.max_steps / clock.step
        # After a signal the Trainer would load the best model and delete all other checkpoints.
        is_early = self.stopped_by is not None
        kept = {"load_best_model_at_end": False, "save_total_limit": None} if is_early else {}
        with self._arguments.held(**kept):
            return finalize(trial, num_train_samples, start_time)


@dataclass(eq=False)
class MixingCallback(TrainerCallback):
    """Closes each step: the policy decides, the ledger is written, the epoch is updated.

    It runs before all other callbacks, so that they see the new state and their changes apply to the next step.

    Args:
        begin: Prepares the parts of the run, and restores its progress after the Trainer has reset it.
        close_step: Records the step that was just trained.
        end_epoch: Called at the end of the loop's epoch, before the other callbacks.
        run: The run.
        handler: The trainer's callbacks, which may include a progress bar of the user.
    """

    begin: Callable[[], None]
    close_step: Callable[[], None]
    end_epoch: Callable[[], None]
    run: Run
    handler: CallbackHandler

    def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
        """Prepares the run."""
        self.begin()

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl:
        """Closes the step, and ends the run if the streams are exhausted."""
        clock = self.run.mixing.clock
        before = 0.0 if clock.is_step_based else clock.progress
        self.close_step()
        self.run.show_place(state)
        self.run.show_length(state)
        if not clock.is_step_based:
            _show_intervals(args, state, before, clock.progress)
        if self.run.mixing.is_exhausted:
            if state.global_step < state.max_steps and state.is_world_process_zero:
                logger.warning(
                    "The streams are exhausted after %d of the %d steps for which the learning rate was planned.",
                    *(state.global_step, state.max_steps),
                )
            # The Trainer then evaluates and saves as after its last step.
            state.max_steps = state.global_step
            control.should_training_stop = True
        show_in_own_bars(self.handler.callbacks, state.max_steps, self.run.mixing)
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
