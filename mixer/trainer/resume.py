"""Resuming from a checkpoint as if the run had never stopped."""

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from transformers.utils import logging

from mixer.checkpoint.checkpoint_files import CAP_ENTRY, STATE_FILE, read_state, supersede
from mixer.checkpoint.choose import (
    Choice,
    agree,
    checkpoint_at,
    choose,
    none_in_common,
    usable_names,
    warn_of_passed_over,
)
from mixer.checkpoint.lock import FolderLock
from mixer.checkpoint.saved_options import (
    OPTIONS_ENTRY,
    batch_size_problem,
    options_of,
    other_options,
    same_optimizer,
)
from mixer.checkpoint.trainer_files import check_trainer_state, naming_unreadable
from mixer.distributed.consistency import check_same, check_shared, shared_options
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
from mixer.trainer.save import Checkpointing, Progress
from mixer.utils.validation import refusing_damage

logger = logging.get_logger(__name__)

_UNSEEN = (
    "A run resumes from files that all nodes can see: put output_dir on a shared file system; or set "
    "save_on_each_node=True, so that each node keeps complete checkpoints, or save_strategy='no'."
)
_CROWDED = "Set save_on_each_node=False, because they share a file system, or set an output_dir per node."


class Resuming:
    """Chooses a complete checkpoint, the same on all ranks, and continues exactly after it.

    Args:
        basis: The trainer, the plan of the run, the run and its ranks.
        loop: The Trainer's loop.
        checkpoints: Writes checkpoints.
    """

    def __init__(self, basis: Basis, loop: LoopControl, checkpoints: Checkpointing):
        self._trainer, self._plan, self._run, self._ranks = basis
        self._loop, self._checkpoints = loop, checkpoints
        self._choice: Choice | None = None
        self._progress: Progress | None = None  # of the checkpoint that the run resumes from
        self._ends_saved_epoch = False
        self.checkpoint: str | None = None  # that the run resumes from
        self.parent: Path | None = None  # the run that this one is a fork of, while it begins
        self._has_new_policy = False
        self._is_held = False  # whether this run holds the lock on the output folder

    def forked(self, run: Path, at: int, train: Callable[[str], Any]) -> Any:
        """Trains on from a checkpoint of another run; see `MixingMixin.fork`.

        Args:
            run: Its output folder.
            at: The step of the checkpoint.
            train: Trains, given a checkpoint.
        """

        def checkpoint() -> str:
            if run.resolve() == Path(str(self._trainer.args.output_dir)).resolve():
                raise ValueError(f"output_dir must be a folder of the fork's own, not {run}, which is that of the run.")
            return str(checkpoint_at(run, at))

        path, self.parent = self._ranks.run_on_all(checkpoint), run
        try:
            return train(path)
        finally:
            self.parent = None

    # ---- The choice of a checkpoint ----

    @contextlib.contextmanager
    def chosen(self, requested: str | bool | None, trial: Any) -> Iterator[str | None]:
        """Locks the output folder and chooses the checkpoint to resume from, if one is requested.

        Args:
            requested: A checkpoint's folder, or `True` for the newest complete one in the output folder.
            trial: The trial of a hyperparameter search.

        Raises:
            ValueError: On all ranks, if there is no such checkpoint or it is incomplete or damaged; with the file.
        """
        args, self._choice = self._trainer.args, None
        with self.holding_output(trial):
            resumes = requested is not None and requested is not False
            uses_folder = resumes or args.save_strategy != "no"
            self._check_ranks("resumes" if resumes else "begins", uses_folder)
            if resumes:
                self._choice = self._choose(True if requested is True else str(requested))
                if (checkpoint := self._choice.checkpoint) is not None:
                    self._ranks.run_on_all(lambda: check_trainer_state(Path(checkpoint)))
            self.checkpoint = None if self._choice is None else self._choice.checkpoint
            with self._naming_unreadable():
                yield self.checkpoint

    @contextlib.contextmanager
    def _naming_unreadable(self) -> Iterator[None]:
        """Names the unreadable file if the Trainer fails to read the checkpoint, before the first step."""
        self._run.has_begun = False
        try:
            yield
        except Exception:
            with naming_unreadable(None if self._run.has_begun else self.checkpoint):
                raise

    @contextlib.contextmanager
    def holding_output(self, trial: Any = None) -> Iterator[None]:
        """Locks the output folder against other runs; all ranks have to call it.

        Args:
            trial: The trial of a hyperparameter search, which has a folder of its own.

        Raises:
            ValueError: If another run uses the folder; with its process.
            OSError: If the folder is not writable; the other ranks raise a `RemoteError`.
        """
        if self._is_held:
            yield
            return
        trainer, lock = self._trainer, FolderLock(output_folder(self._trainer, trial))
        try:
            self._ranks.run_on_all(lambda: lock.acquire() if trainer.is_world_process_zero() else None)
            self._is_held = True
            yield
        finally:
            self._is_held = False
            lock.release()

    def newest_checkpoint(self) -> str | None:
        """Returns the folder of the newest complete and intact checkpoint, or `None`; all ranks have to call it."""
        with self.holding_output():  # it also cleans up after an interrupted run
            self._check_ranks("looks for a checkpoint", uses_folder=True)
            return self._choose(None).checkpoint

    def _check_ranks(self, does: str, uses_folder: bool) -> None:
        """Refuses ranks that are about to do different things, and folders that cannot be resumed from."""
        args, run = self._trainer.args, self._run
        if args.world_size == 1:
            return
        check_same({"streams": list(run.mixing.names)}, self._ranks)  # their order decides how ranks share them
        training = shared_options(args.to_dict())  # type: ignore[no-untyped-call]
        skipping = {
            "streams": sorted(self._plan.skipping.stream_ids),
            "max_skipped_share": self._plan.skipping.max_share,
        }
        mixture = {"mixture": run.mixing.state_dict(), "on_sample_error": skipping}
        check_same({"train()": does, "training": training, **mixture}, self._ranks)
        if uses_folder:
            check_shared(Path(str(args.output_dir)), args.should_save, self._ranks, _UNSEEN, _CROWDED)

    def _choose(self, requested: str | bool | None) -> Choice:
        """Chooses a checkpoint; `None` requests the newest one, if any."""
        args = self._trainer.args
        folder, saves = Path(str(args.output_dir)), args.should_save
        among = self._usable_on_all_nodes(folder) if args.save_on_each_node else None

        own = self._ranks.run_on_all(
            lambda: choose(folder, requested, among, self._plan.config.allow_inexact) if saves else None
        )
        choice = agree(own, self._ranks.gather)
        if self._trainer.is_world_process_zero():
            warn_of_passed_over(choice)
        if saves or choice.checkpoint is None:
            return choice
        # The folder may have another path on each node.
        return replace(
            choice, checkpoint=requested if isinstance(requested, str) else str(folder / Path(choice.checkpoint).name)
        )

    def _usable_on_all_nodes(self, folder: Path) -> set[str]:
        """Names the checkpoints that every node can resume from on its own disk."""
        saves = self._trainer.args.should_save
        own = self._ranks.run_on_all(lambda: usable_names(folder, self._plan.config.allow_inexact) if saves else None)
        by_node = {rank: set(names) for rank, names in enumerate(self._ranks.gather(own)) if names is not None}
        common = set.intersection(*by_node.values())
        if not common and any(by_node.values()):
            raise ValueError(none_in_common(folder, by_node))
        return common

    # ---- The state of a checkpoint ----

    @contextlib.contextmanager
    def taking_up(self) -> Iterator[None]:
        """Raises a `ValueError` that names the checkpoint if its state is damaged or does not fit the run."""
        try:
            with refusing_damage(f"its {STATE_FILE}"):
                yield
        except ValueError as error:
            raise ValueError(f"Cannot resume the mixture from {self.checkpoint}: {_sentence(error)}") from error

    def restored(
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
        mixing, checkpoint = self._run.mixing, Path(str(self.checkpoint))
        methods.load(checkpoint)
        state, manual, manual_size = read_state(checkpoint), mixing.manual_weights, mixing.manual_batch_size
        with self.taking_up():
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
            self._has_new_policy = self.parent is not None and self._is_other_mixing(state)
            mixing.load_state_dict(state, new_policy=self._has_new_policy)
        except ValueError as error:
            if not self._plan.config.allow_inexact:
                raise ValueError(f"{_sentence(error)} To resume anyway, set allow_inexact=True") from None
            logger.warning("Resumed inexactly: %s", _sentence(error))
            mixing.restart(*new_parts(batch_size))
            mixing.load_state_dict(state, allow_inexact=True)
            progress = replace(progress, recorder={}, methods={})
        self._tell(state)
        return progress

    def _is_other_mixing(self, state: Mapping[str, Any]) -> bool:
        """Whether the mixing is not that of the checkpoint, which a fork goes on with to the bit."""
        own = options_of(self._trainer, self._plan, self._run.mixing)["own"]["mixing"]
        return bool(state[OPTIONS_ENTRY]["own"]["mixing"] != own)

    def _batch_size_of(self, state: Mapping[str, Any], num_ranks: int) -> int | None:
        """Returns the initial batch size to go on with; `None` for that of the training arguments."""
        saved, has_own = int(state["clock"]["initial_batch_size"]), self._plan.schedule.initial is not None
        problem = None if has_own else batch_size_problem(self._trainer, state, num_ranks)
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

    def _tell(self, state: Mapping[str, Any]) -> None:
        """Logs which options are not those of the checkpoint, and which of both go on."""
        others = other_options(state[OPTIONS_ENTRY], options_of(self._trainer, self._plan, self._run.mixing))
        if others and self._trainer.is_world_process_zero():
            logger.warning("Resumed from %s with other options. %s", self.checkpoint, others)

    def loading_optimizer(self) -> contextlib.AbstractContextManager[None]:
        """Refuses another optimizer than the checkpoint's; the Trainer loads it in this context."""
        if self.checkpoint is None or self._trainer.is_deepspeed_enabled:
            return contextlib.nullcontext()
        saved = read_state(Path(self.checkpoint))[OPTIONS_ENTRY]
        return same_optimizer(self._trainer, self.checkpoint, saved["optimizer"])

    def take_up_cap(self) -> None:
        """Restores the micro-batch limit that an earlier part of the run has found."""
        if self.checkpoint is not None:
            loader, saved = self._run.present_loader, read_state(Path(self.checkpoint))
            with self.taking_up():
                loader.cap = loader.cap.taken_up(saved.get(CAP_ENTRY))

    # ---- The beginning of a run ----

    def begin(self, progress: Progress | None) -> None:
        """Prepares for a run that begins, or resumes at `progress`."""
        checkpoints, self._progress = self._checkpoints, progress
        checkpoints.last = None if self.checkpoint is None else Path(self.checkpoint)
        checkpoints.last_step, self._ends_saved_epoch = (None, None, None), False
        if self._trainer.args.should_save:
            supersede(output_folder(self._trainer, present_trial(self._trainer)), checkpoints.last)

    def begin_ledger(self, description: dict[str, Any]) -> None:
        """Begins the ledger, at the step of the checkpoint if the run resumes."""
        ledger, progress = self._run.ledger, self._progress
        fork = self._fork_of(ledger)
        if self.parent is not None:
            ledger.take_over(self.parent / "ledger")
        existed, step = ledger.folder.exists(), None if progress is None else self._run.mixing.clock.step
        left = (None, None) if progress is None else (progress.num_evaluations, progress.num_metrics)
        ledger.begin(step, {**description, "run": {**description["run"], **fork}}, *left)
        if ledger.is_writer and ledger.interval_steps > 1 and self._plan.config.ledger_interval_steps is None:
            logger.warning(
                "The ledger has %s streams: a row covers %d steps (counts are summed, losses and weights averaged). "
                "Set ledger_interval_steps=1 for a row a step and stream.",
                f"{len(self._plan.streams):,}",
                ledger.interval_steps,
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
        if self.parent is not None:
            return {"parent": str(self.parent), "forked_at": self._run.mixing.clock.step}
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

    def take_up_progress(self) -> None:
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
        with self.taking_up():
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
        ended = self._choice is not None and self._choice.ended
        return progress.training_stops and not ended

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
