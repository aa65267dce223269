"""Where a run starts: its output folder, which it locks, and the checkpoint to resume from, the same on all ranks."""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import mixer.checkpoint.choose as choosing
from mixer.checkpoint.lock import FolderLock
from mixer.checkpoint.trainer_files import check_trainer_state, find_unreadable
from mixer.distributed.consistency import check_same, check_shared, shared_options
from mixer.run.hf_compat import output_folder
from mixer.run.state import Basis

_UNSEEN = (
    "A run resumes from files that all nodes can see: put output_dir on a shared file system; or set "
    "save_on_each_node=True, so that each node keeps complete checkpoints, or save_strategy='no'."
)
_CROWDED = "Set save_on_each_node=False, because they share a file system, or set an output_dir per node."


class StartingPoint:
    """Locks the output folder, and chooses a complete checkpoint, the same on all ranks.

    Args:
        basis: The trainer, the plan of the run, the run and its ranks.
    """

    def __init__(self, basis: Basis):
        self._trainer, self._plan, self._run, self._ranks = basis
        self.checkpoint: str | None = None  # that the run resumes from
        self.has_ended = False  # whether the run that wrote it had ended there
        self.parent: Path | None = None  # the run that this one is a fork of, while it begins
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
            return str(choosing.checkpoint_at(run, at))

        path, self.parent = self._ranks.run_on_all(checkpoint), run
        try:
            return train(path)
        finally:
            self.parent = None

    @contextlib.contextmanager
    def chosen(self, requested: str | bool | None, trial: Any) -> Iterator[str | None]:
        """Locks the output folder and chooses the checkpoint to resume from, if one is requested.

        Args:
            requested: A checkpoint's folder, or `True` for the newest complete one in the output folder.
            trial: The trial of a hyperparameter search.

        Raises:
            ValueError: On all ranks, if there is no such checkpoint or it is incomplete or damaged; with the file.
        """
        args, choice = self._trainer.args, choosing.Choice()
        with self.holding_output(trial):
            resumes = requested is not None and requested is not False
            uses_folder = resumes or args.save_strategy != "no"
            self._check_ranks("resumes" if resumes else "begins", uses_folder)
            if resumes:
                choice = self._choose(True if requested is True else str(requested))
                if (checkpoint := choice.checkpoint) is not None:
                    self._ranks.run_on_all(lambda: check_trainer_state(Path(checkpoint)))
            self.checkpoint, self.has_ended = choice.checkpoint, choice.ended
            with self._naming_unreadable():
                yield self.checkpoint

    @contextlib.contextmanager
    def _naming_unreadable(self) -> Iterator[None]:
        """Names the unreadable file if the Trainer fails to read the checkpoint, before the first step."""
        self._run.has_begun = False
        try:
            yield
        except Exception as error:  # libraries do not name the file
            is_known = self.checkpoint is None or self._run.has_begun
            unreadable = None if is_known else find_unreadable(Path(str(self.checkpoint)))
            if unreadable is None:
                raise
            raise unreadable from error

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

    def _choose(self, requested: str | bool | None) -> choosing.Choice:
        """Chooses a checkpoint; `None` requests the newest one, if any."""
        args = self._trainer.args
        folder, saves = Path(str(args.output_dir)), args.should_save
        among = self._usable_on_all_nodes(folder) if args.save_on_each_node else None

        own = self._ranks.run_on_all(
            lambda: choosing.choose(folder, requested, among, self._plan.config.allow_inexact) if saves else None
        )
        choice = choosing.agree(own, self._ranks.gather)
        if self._trainer.is_world_process_zero():
            choosing.warn_of_passed_over(choice)
        if saves or choice.checkpoint is None:
            return choice
        # The folder may have another path on each node.
        return replace(
            choice, checkpoint=requested if isinstance(requested, str) else str(folder / Path(choice.checkpoint).name)
        )

    def _usable_on_all_nodes(self, folder: Path) -> set[str]:
        """Names the checkpoints that every node can resume from on its own disk."""
        saves = self._trainer.args.should_save
        own = self._ranks.run_on_all(
            lambda: choosing.usable_names(folder, self._plan.config.allow_inexact) if saves else None
        )
        by_node = {rank: set(names) for rank, names in enumerate(self._ranks.gather(own)) if names is not None}
        common = set.intersection(*by_node.values())
        if not common and any(by_node.values()):
            raise ValueError(choosing.none_in_common(folder, by_node))
        return common
