"""Resuming from a checkpoint as if the run had never stopped."""

import contextlib
import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from transformers.utils import logging

from mixer.distributed.consistency import check_same, check_shared, shared_options
from mixer.trainer.checkpointing.choose import Choice, agree, choose, none_in_common, usable_names, warn_of_passed_over
from mixer.trainer.checkpointing.files import supersede
from mixer.trainer.checkpointing.lock import FolderLock
from mixer.trainer.checkpointing.save import Progress
from mixer.trainer.checkpointing.trainer_files import check_trainer_state, naming_unreadable
from mixer.trainer.loop import LoopMixin
from mixer.utils.validation import refusing_damage

logger = logging.get_logger(__name__)

_UNSEEN = (
    "A run resumes from files that all nodes can see: put output_dir on a shared file system; or set "
    "save_on_each_node=True, so that each node keeps complete checkpoints, or save_strategy='no'."
)
_CROWDED = "Set save_on_each_node=False, because they share a file system, or set an output_dir per node."


class ResumingMixin(LoopMixin):
    """A Trainer that chooses a complete checkpoint, the same on all ranks, and continues exactly after it."""

    _choice: Choice | None = None
    _progress: Progress | None = None  # of the checkpoint that the run resumes from
    _ends_saved_epoch: bool = False
    _resumed_checkpoint: str | None = None
    _is_held: bool = False  # whether this run holds the lock on the output folder
    _trial: Any = None  # of a hyperparameter search; set by the Trainer

    def train(self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any) -> Any:
        """Trains, from a checkpoint if requested; see `Trainer.train`.

        Args:
            resume_from_checkpoint: A checkpoint's folder, or `True` for the newest complete one in the output folder.
            *args: As for the Trainer.
            **kwargs: As for the Trainer.

        Raises:
            ValueError: On all ranks, if there is no such checkpoint or it is incomplete or damaged; with the file.
        """
        self._choice = None
        with self.holding_output(args[0] if args else kwargs.get("trial")):
            resumes = resume_from_checkpoint is not None and resume_from_checkpoint is not False
            uses_folder = resumes or self.args.save_strategy != "no"
            self._check_ranks("resumes" if resumes else "begins", uses_folder)
            if resumes:
                self._choice = self._choose(True if resume_from_checkpoint is True else str(resume_from_checkpoint))
                if (checkpoint := self._choice.checkpoint) is not None:
                    self._rank_sync.run_on_all(lambda: check_trainer_state(Path(checkpoint)))
            self._resumed_checkpoint = None if self._choice is None else self._choice.checkpoint
            with self._naming_unreadable():
                return super().train(self._resumed_checkpoint, *args, **kwargs)

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
        lock = FolderLock(Path(str(self._get_output_dir(trial))))
        try:
            self._rank_sync.run_on_all(lambda: lock.acquire() if self.is_world_process_zero() else None)
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
        if self.args.world_size == 1:
            return
        names = {"streams": list(self.mixing.names)}  # their order decides how ranks share them
        check_same(names, self._rank_sync)
        training = shared_options(self.args.to_dict())  # type: ignore[no-untyped-call]
        skipping = {"streams": sorted(self._skipping.stream_ids), "max_skipped_share": self._skipping.max_share}
        run = {"train()": does, "training": training, "mixture": self.mixing.state_dict(), "on_sample_error": skipping}
        check_same(run, self._rank_sync)
        if uses_folder:
            folder = Path(str(self.args.output_dir))
            check_shared(folder, self.args.should_save, self._rank_sync, _UNSEEN, _CROWDED)

    def _choose(self, requested: str | bool | None) -> Choice:
        """Chooses a checkpoint; `None` requests the newest one, if any."""
        folder, saves = Path(str(self.args.output_dir)), self.args.should_save
        among = self._usable_on_all_nodes(folder) if self.args.save_on_each_node else None

        own = self._rank_sync.run_on_all(
            lambda: choose(folder, requested, among, self._allow_inexact) if saves else None
        )
        choice = agree(own, self._rank_sync.gather_bytes)
        if self.is_world_process_zero():
            warn_of_passed_over(choice)
        if saves or choice.checkpoint is None:
            return choice
        # The folder may have another path on each node.
        return replace(
            choice, checkpoint=requested if isinstance(requested, str) else str(folder / Path(choice.checkpoint).name)
        )

    def _usable_on_all_nodes(self, folder: Path) -> set[str]:
        """Names the checkpoints that every node can resume from on its own disk."""
        saves, allow_inexact = self.args.should_save, self._allow_inexact
        own = self._rank_sync.run_on_all(lambda: usable_names(folder, allow_inexact) if saves else None)
        by_rank = [json.loads(text) for text in self._rank_sync.gather_bytes(json.dumps(own).encode())]
        by_node = {rank: set(names) for rank, names in enumerate(by_rank) if names is not None}
        common = set.intersection(*by_node.values())
        if not common and any(by_node.values()):
            raise ValueError(none_in_common(folder, by_node))
        return common

    def _begin_progress(self, progress: Progress | None) -> None:
        """Prepares for a run that begins, or resumes at `progress`."""
        self._progress = progress
        self._last_checkpoint = None if self._choice is None else Path(str(self._choice.checkpoint))
        self._last_step, self._ended_at = (None, None, None), None
        self._ends_saved_epoch = self._stops_epoch = False
        if self.args.should_save:
            supersede(Path(str(self._get_output_dir(self._trial))), self._last_checkpoint)

    def _begin_ledger(self, resume_step: int | None, description: dict[str, Any]) -> None:
        existed, progress = self.ledger.folder.exists(), self._progress
        left = (None, None) if progress is None else (progress.num_evaluations, progress.num_metrics)
        self.ledger.begin(resume_step, description, *left)
        if progress is None or not self.ledger.is_writer:
            return
        if existed:
            self._check_ledger_rows(progress, resume_step)
        else:
            logger.warning(
                "%s does not exist: the ledger begins after the checkpoint. Earlier rows are on the node of the "
                "earlier rank 0.",
                self.ledger.folder,
            )

    def _check_ledger_rows(self, progress: Progress, resume_step: int | None) -> None:
        """Refuses a ledger that has lost rows since the checkpoint of this folder was written."""
        folder = self.ledger.folder.parent
        if self._last_checkpoint is None or self._last_checkpoint.resolve().parent != folder.resolve():
            return
        missing = ", ".join(
            f"{self.ledger.folder / table} lacks {lost} rows"
            for table, num_rows in self.ledger.num_rows().items()
            if (lost := progress.ledger_rows.get(table, 0) - num_rows) > 0
        )
        if not missing:
            return
        message = (
            f"{missing} that existed when the checkpoint of step {resume_step} was written: a file of the ledger was "
            f"removed, or the end of one was damaged."
        )
        if not self._allow_inexact:
            raise ValueError(
                f"{message} Resume from an earlier checkpoint, which records these rows again, or continue without "
                f"them with allow_inexact=True."
            )
        logger.warning("%s The run continues without them.", message)

    def _take_up_progress(self) -> None:
        """Restores the progress of the loop, which the Trainer has just reset."""
        self._started = time.monotonic()
        self._show_length()
        if (progress := self._progress) is None:
            return
        self._started -= progress.seconds
        self._initial_global_step, self._initial_num_input_tokens_seen = 0, 0
        self._tr_loss.fill_(progress.running_loss(self.args.process_index, self.args.world_size))
        self._total_loss_scalar = progress.logged_loss
        self._globalstep_last_logged = progress.last_logged_step
        self.current_flos = 0
        if self._learning_rate is not None:
            self._learning_rate.factor = progress.learning_rate_factor
        with refusing_damage(f"the next log entry in {self._choice and self._choice.checkpoint}"):
            self._recorder.load_state_dict(progress.recorder)

    def _init_training_state(
        self, max_steps: int, num_update_steps_per_epoch: int, num_train_epochs: int, *args: Any, **kwargs: Any
    ) -> tuple[int, int]:
        """Returns the first epoch: that of the checkpoint if it is not finished."""
        begun: tuple[int, int] = super()._init_training_state(
            max_steps, num_update_steps_per_epoch, num_train_epochs, *args, **kwargs
        )
        progress, clock = self._progress, self.mixing.clock
        if progress is None:
            return begun
        self.mixing.drop_rest()  # for a batch size that was set right after the checkpoint was written
        self._show_length()
        if self.mixing.is_exhausted:
            self.state.max_steps = self.state.global_step
        is_done = clock.step >= self.state.max_steps or self._was_stopped(progress)
        if progress.epoch_end_is_left:
            self._ends_saved_epoch = is_done or clock.at_epoch_end or progress.epoch_stops
        elif progress.epoch_stops and clock.step_in_epoch:
            clock.end_epoch()
        if self._ends_saved_epoch:
            return clock.num_epochs_done - clock.at_epoch_end, 0
        return (self._num_epochs_bound if is_done else clock.num_epochs_done), 0

    def _was_stopped(self, progress: Progress) -> bool:
        """Whether a callback stopped the run before it finished; a finished run may be continued."""
        ended = self._choice is not None and self._choice.ended
        return progress.training_stops and not ended

    @contextlib.contextmanager
    def _naming_unreadable(self) -> Iterator[None]:
        """Names the unreadable file if the Trainer fails to read the checkpoint, before the first step."""
        self._has_begun = False
        try:
            yield
        except Exception:
            with naming_unreadable(None if self._has_begun else self._resumed_checkpoint):
                raise

    def _run_epoch(self, *args: Any, **kwargs: Any) -> None:
        kwargs["start_time"] = self._start_time
        if not self._ends_saved_epoch:
            super()._run_epoch(*args, **kwargs)
            return
        self._ends_saved_epoch = False
        self._end_saved_epoch(**kwargs)
        self._close_epoch()

    def _end_saved_epoch(
        self, model: Any, epoch: int, trial: Any, ignore_keys_for_eval: Any, resume_from_checkpoint: str, **_: Any
    ) -> None:
        """Does the Trainer's work at the end of an epoch, if the checkpoint was written right before that."""
        progress, control, clock = self._progress, self.control, self.mixing.clock
        self._show_place()
        assert progress is not None, "only a resumed run has a saved epoch"  # noqa: S101
        self._load_rng_state(resume_from_checkpoint)
        self._ended_at = self.state.global_step
        control.should_log = control.should_evaluate = control.should_save = False
        control.should_epoch_stop = progress.epoch_stops
        control.should_training_stop = clock.step >= self.state.max_steps or self._was_stopped(progress)
        self._last_step = (self.state.global_step, progress.gradient_norm, progress.learning_rate)
        self.control = self.callback_handler.on_epoch_end(self.args, self.state, control)
        options = (model, trial, epoch, ignore_keys_for_eval, self._start_time)
        norm, rate = progress.gradient_norm, progress.learning_rate
        self._maybe_log_save_evaluate(self._tr_loss, norm, *options, learning_rate=rate)

    def _finalize_training(self, trial: Any, num_train_samples: float, start_time: float) -> Any:
        """Summarises the whole run, including the part before the checkpoint; see `Trainer._finalize_training`."""
        return super()._finalize_training(trial, num_train_samples, self._start_time)
