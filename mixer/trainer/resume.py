"""Resuming from a checkpoint as if the run had never stopped.

What is restored when, in the order of `Trainer.train`:

1. `StartingPoint` chooses a complete checkpoint and locks the output folder.
2. The Trainer loads the weights; `Training.complete_loading` completes them and refuses what is left out.
3. The loop asks for its loader, and `Training` begins the run: `restore` gives mixture, rules and methods their state,
   `begin_ledger` cuts the ledger at the checkpoint's step, `restore_cap` gives the loader its limit.
4. `first_epoch` says where the loop goes on.
5. The Trainer wraps the model (with DeepSpeed and FSDP it loads the weights only now), and loads optimizer and schedule
   within `loading_optimizer`.
6. `on_train_begin`: `restore_progress` restores what the Trainer has reset.
7. `run_epoch`: the Trainer restores the random states; of an epoch that was at its end only that is done.
"""

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from transformers.utils import logging

from mixer.checkpoint import saved_options
from mixer.checkpoint.checkpoint_files import CAP_ENTRY, STATE_FILE, read_state, supersede
from mixer.checkpoint.progress import Progress
from mixer.ledger.folder import read_description
from mixer.ledger.ledger import Ledger
from mixer.mixture.batch_size import BatchSize
from mixer.mixture.clock import Clock
from mixer.mixture.controller import check_format
from mixer.mixture.planner import Planner
from mixer.run.hf_compat import load_random_state, log_save_evaluate, output_folder, present_trial, restore_loop
from mixer.run.state import Basis
from mixer.trainer.loop import LoopControl
from mixer.trainer.methods import MethodList
from mixer.trainer.save import Checkpointing
from mixer.trainer.starting_point import StartingPoint
from mixer.utils.validation import refusing_damage

logger = logging.get_logger(__name__)


class Resuming:
    """Continues exactly after the checkpoint that a run starts from.

    Args:
        basis: The trainer, the plan of the run, the run and its ranks.
        start: Where the run starts.
        loop: The Trainer's loop.
        checkpoints: Writes checkpoints.
    """

    def __init__(self, basis: Basis, start: StartingPoint, loop: LoopControl, checkpoints: Checkpointing):
        self._trainer, self._plan, self._run, self._ranks = basis
        self._start, self._loop, self._checkpoints = start, loop, checkpoints
        self._progress: Progress | None = None  # of the checkpoint that the run resumes from
        self._ends_saved_epoch = False
        self._has_new_policy = False

    # ---- The state of a checkpoint ----

    @contextlib.contextmanager
    def naming_checkpoint(self) -> Iterator[None]:
        """Raises a `ValueError` that names the checkpoint if its state is damaged or does not fit the run."""
        try:
            with refusing_damage(f"its {STATE_FILE}"):
                yield
        except ValueError as error:
            raise ValueError(f"Cannot resume the mixture from {self._start.checkpoint}: {_sentence(error)}") from error

    def restore(
        self, methods: MethodList, new_parts: Callable[[int | None], tuple[Planner, Clock, BatchSize]]
    ) -> Progress:
        """Restores the mixture and the methods from the chosen checkpoint.

        Args:
            methods: The methods of the run.
            new_parts: Makes the parts of the mixture, given the initial batch size.

        Returns:
            The progress of the loop.

        Raises:
            ValueError: If the state does not fit the run, or is damaged.
        """
        mixing, checkpoint = self._run.mixing, Path(str(self._start.checkpoint))
        methods.load(checkpoint)
        state, manual, manual_size = read_state(checkpoint), mixing.manual_weights, mixing.manual_batch_size
        with self.naming_checkpoint():
            progress = self._load(state, methods, new_parts)
        if manual is not None:  # set by the user before this run: overrides the saved weights
            mixing.set_weights(manual)
        if manual_size is not None:
            mixing.set_batch_size(manual_size)
        return progress

    def _load(
        self,
        state: Mapping[str, Any],
        methods: MethodList,
        new_parts: Callable[[int | None], tuple[Planner, Clock, BatchSize]],
    ) -> Progress:
        check_format(state)
        mixing = self._run.mixing
        progress = Progress.from_state(state["progress"])
        batch_size = self._batch_size_of(state, len(progress.running_losses))
        mixing.restart(*new_parts(batch_size))
        try:
            methods.check_settings(state)
            self._has_new_policy = self._start.parent is not None and self._is_other_mixing(state)
            mixing.load_state_dict(state, new_policy=self._has_new_policy)
        except ValueError as error:
            if not self._plan.config.allow_inexact:
                raise ValueError(f"{_sentence(error)} To resume anyway, set allow_inexact=True") from None
            logger.warning("Resumed inexactly: %s", _sentence(error))
            mixing.restart(*new_parts(batch_size))
            mixing.load_state_dict(state, allow_inexact=True)
            progress = replace(progress, recorder={}, methods={})
        now = saved_options.options_of(self._trainer, self._plan, mixing)
        if (
            others := saved_options.other_options(state[saved_options.OPTIONS_ENTRY], now)
        ) and self._trainer.is_world_process_zero():
            logger.warning("Resumed from %s with other options. %s", self._start.checkpoint, others)
        return progress

    def _is_other_mixing(self, state: Mapping[str, Any]) -> bool:
        """Whether the mixing is not that of the checkpoint, which a fork goes on with to the bit."""
        own = saved_options.options_of(self._trainer, self._plan, self._run.mixing)["own"]["mixing"]
        return bool(state[saved_options.OPTIONS_ENTRY]["own"]["mixing"] != own)

    def _batch_size_of(self, state: Mapping[str, Any], num_ranks: int) -> int | None:
        """Returns the initial batch size to go on with; `None` for that of the training arguments."""
        saved, has_own = int(state["clock"]["initial_batch_size"]), self._plan.schedule.initial is not None
        problem = None if has_own else saved_options.batch_size_problem(self._trainer, state, num_ranks)
        if problem is None:
            return saved
        is_of_ranks, difference = problem
        if not is_of_ranks and self._plan.config.allow_inexact:
            return None
        if not is_of_ranks:
            raise ValueError(
                f"{difference}. To keep {saved}, set batch_size={saved} (gradient_accumulation_steps=1; "
                "per_device_train_batch_size caps micro-batches); to change it, allow_inexact=True."
            )
        if self._trainer.is_world_process_zero():
            logger.warning("Resumed on another number of ranks: %s. %d goes on.", difference, saved)
        return saved

    def loading_optimizer(self) -> contextlib.AbstractContextManager[None]:
        """Refuses another optimizer than the checkpoint's; the Trainer loads it in this context."""
        if self._start.checkpoint is None or self._trainer.is_deepspeed_enabled:
            return contextlib.nullcontext()
        saved = read_state(Path(self._start.checkpoint))[saved_options.OPTIONS_ENTRY]
        return saved_options.same_optimizer(self._trainer, self._start.checkpoint, saved["optimizer"])

    def restore_cap(self) -> None:
        """Restores the micro-batch limit that an earlier part of the run has found."""
        if self._start.checkpoint is not None:
            loader, saved = self._run.present_loader, read_state(Path(self._start.checkpoint))
            with self.naming_checkpoint():
                loader.cap = loader.cap.lowered_to(saved.get(CAP_ENTRY))

    # ---- The beginning of a run ----

    def begin_run(self, progress: Progress | None) -> None:
        """Prepares for a run that begins, or resumes at `progress`."""
        checkpoints, self._progress = self._checkpoints, progress
        checkpoints.last = None if self._start.checkpoint is None else Path(self._start.checkpoint)
        checkpoints.last_step, self._ends_saved_epoch = (None, None, None), False
        if self._trainer.args.should_save:
            supersede(output_folder(self._trainer, present_trial(self._trainer)), checkpoints.last)

    def begin_ledger(self, description: dict[str, Any]) -> None:
        """Begins the ledger, at the step of the checkpoint if the run resumes."""
        ledger, progress = self._run.ledger, self._progress
        fork = self._fork_of(ledger)
        if self._start.parent is not None:
            ledger.copy_from(self._start.parent / "ledger")
        existed, step = ledger.folder.exists(), None if progress is None else self._run.mixing.clock.step
        left = (None, None) if progress is None else (progress.num_evaluations, progress.num_metrics)
        ledger.begin(step, {**description, "run": {**description["run"], **fork}}, *left)
        if ledger.is_writer and ledger.interval_steps > 1 and self._plan.config.ledger_interval_steps is None:
            logger.warning(
                "The ledger has %s streams: a row covers %d steps (counts are summed, losses and weights averaged). "
                "Set ledger_interval_steps=1 for a row a step and stream.",
                *(f"{len(self._plan.streams):,}", ledger.interval_steps),
            )
        if progress is None or not ledger.is_writer:
            return
        if existed:
            self._check_ledger_rows(progress, step)
        else:
            logger.warning(
                "%s does not exist: the ledger begins after the checkpoint; the earlier rank 0's node has older rows.",
                ledger.folder,
            )

    def _fork_of(self, ledger: Ledger) -> dict[str, Any]:
        """Says of which run this one is a fork, also when it goes on after an interruption; empty if of none."""
        if self._start.parent is not None:
            return {"parent": str(self._start.parent), "forked_at": self._run.mixing.clock.step}
        if self._progress is None or not (ledger.is_writer and ledger.folder.exists()):
            return {}
        with contextlib.suppress(ValueError):  # of a damaged file, which is written anew
            described = read_description(ledger.folder.parent)
            return {name: described[name] for name in ("parent", "forked_at") if name in described}
        return {}

    def record_new_policy(self) -> None:
        """Records the first decision of a policy that begins with a fork."""
        if self._has_new_policy:
            self._run.recorder.record_new_policy(self._run.mixing.clock.step)
        self._has_new_policy = False

    def _check_ledger_rows(self, progress: Progress, resume_step: int | None) -> None:
        """Refuses a ledger that has lost rows since the checkpoint of this folder was written."""
        ledger, last = self._run.ledger, self._checkpoints.last
        if last is None or last.resolve().parent != ledger.folder.parent.resolve():
            return
        missing = ", ".join(
            f"{ledger.folder / table} lacks {lost} rows"
            for table, num_rows in ledger.num_rows().items()
            if (lost := progress.ledger_rows.get(table, 0) - num_rows) > 0
        )
        if not missing:
            return
        message = (
            f"{missing} that existed when the checkpoint of step {resume_step} was written: a file of the ledger was "
            f"removed, or the end of one was damaged."
        )
        if not self._plan.config.allow_inexact:
            raise ValueError(
                f"{message} Resume from an earlier checkpoint, which records these rows again, or continue without "
                f"them with allow_inexact=True."
            )
        logger.warning("%s The run continues without them.", message)

    def restore_progress(self) -> None:
        """Restores the progress of the loop, which the Trainer has just reset."""
        run, args, progress = self._run, self._trainer.args, self._progress
        self._checkpoints.started = time.monotonic()
        run.show_length(self._trainer.state)
        if progress is None:
            return
        self._checkpoints.started -= progress.seconds
        running_loss = progress.running_loss(args.process_index, args.world_size)
        restore_loop(self._trainer, running_loss, progress.logged_loss, progress.last_logged_step)
        if run.learning_rate is not None:
            run.learning_rate.factor = progress.learning_rate_factor
        with self.naming_checkpoint():
            run.recorder.load_state_dict(progress.recorder)

    # ---- The epoch that the checkpoint has cut off ----

    def first_epoch(self, begin: Callable[..., tuple[int, int]], *args: Any, **kwargs: Any) -> tuple[int, int]:
        """Returns the first epoch of the loop: that of the checkpoint if it is not finished.

        Args:
            begin: The Trainer's own, `Trainer._init_training_state`.
            *args: Its arguments.
            **kwargs: Its arguments.
        """
        with self._loop.one_batch_a_step():
            begun = begin(*args, **kwargs)
        progress, mixing, state = self._progress, self._run.mixing, self._trainer.state
        clock = mixing.clock
        if progress is None:
            return begun
        mixing.drop_rest()  # for a batch size that was set right after the checkpoint was written
        self._run.show_length(state)
        if mixing.is_exhausted:
            state.max_steps = state.global_step
        is_done = clock.step >= state.max_steps or self._was_stopped(progress)
        if progress.epoch_end_is_left:
            self._ends_saved_epoch = is_done or clock.at_epoch_end or progress.epoch_stops
        elif progress.epoch_stops and clock.step_in_epoch:
            clock.end_epoch()
        if self._ends_saved_epoch:
            return clock.num_epochs_done - clock.at_epoch_end, 0
        return (self._loop.num_epochs_bound if is_done else clock.num_epochs_done), 0

    def _was_stopped(self, progress: Progress) -> bool:
        """Whether a callback stopped the run before it finished; a finished run may be continued."""
        return progress.training_stops and not self._start.has_ended

    def run_epoch(self, run_epoch: Callable[..., None], *args: Any, **kwargs: Any) -> None:
        """Runs an epoch of the loop, or only the end of the one that the checkpoint has cut off."""
        if not self._ends_saved_epoch:
            self._loop.run_epoch(run_epoch, *args, **kwargs)
            return
        self._ends_saved_epoch = False
        self._end_saved_epoch(**kwargs)
        self._loop.close_epoch()

    def _end_saved_epoch(
        self, model: Any, epoch: int, trial: Any, ignore_keys_for_eval: Any, resume_from_checkpoint: str, **_: Any
    ) -> None:
        """Does the Trainer's work at the end of an epoch, if the checkpoint was written right before that."""
        trainer, progress = self._trainer, self._progress
        control, state = trainer.control, trainer.state
        assert progress is not None, "only a resumed run has a saved epoch"  # noqa: S101
        self._run.show_place(state)
        load_random_state(trainer, resume_from_checkpoint)
        self._loop.ended_at = state.global_step
        control.should_log = control.should_evaluate = control.should_save = False
        control.should_epoch_stop = progress.epoch_stops
        is_done = self._run.mixing.clock.step >= state.max_steps
        control.should_training_stop = is_done or self._was_stopped(progress)
        self._checkpoints.last_step = (state.global_step, progress.gradient_norm, progress.learning_rate)
        trainer.control = trainer.callback_handler.on_epoch_end(trainer.args, state, control)
        options = (model, trial, epoch, ignore_keys_for_eval, self._checkpoints.start_time)
        log_save_evaluate(trainer, progress.gradient_norm, options, progress.learning_rate)


def _sentence(error: Exception) -> str:
    return f"{str(error).rstrip('.')}."
