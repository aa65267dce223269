"""Where a run starts: its output folder, which it locks, and the checkpoint to resume from, the same on all ranks."""

import contextlib
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from transformers.utils import logging

from mixer.checkpoint import checkpoint_files
from mixer.checkpoint.choosing import Choice, Origin, as_request, checkpoint_at, choose, replaceable, why_not
from mixer.checkpoint.lock import FolderLock
from mixer.checkpoint.trainer_files import check_trainer_state, find_unreadable
from mixer.distributed.consistency import check_same, check_shared, shared_options
from mixer.loading.same_data import check_same_rows, data_of_ranks
from mixer.run.hf_compat import output_folder
from mixer.run.state import Basis
from mixer.utils.attributes import attributes_held
from mixer.utils.errors import InvalidValueError, wrong_value

logger = logging.get_logger(__name__)

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

    @contextlib.contextmanager
    def forking(self, run: Path, at: int) -> Iterator[str]:
        """Gives a checkpoint of another run, to train on from; see `MixingMixin.fork`.

        Args:
            run: Its output folder.
            at: The step of the checkpoint.
        """

        def checkpoint() -> str:
            if run.resolve() == Path(str(self._trainer.args.output_dir)).resolve():
                text = f"must be a folder of the fork's own, not {run}, which is that of the run."
                raise wrong_value("output_dir", text)
            return str(checkpoint_at(run, at))

        path, self.parent = self._ranks.run_on_all(checkpoint), run
        try:
            yield path
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
        args, choice, requested = self._trainer.args, Choice(), as_request(requested)
        with self.holding_output(trial):
            resumes = requested is not None and requested is not False
            uses_folder = resumes or args.save_strategy != "no"
            self._check_ranks("resumes" if resumes else "begins", uses_folder)
            self._check_data()
            if resumes:
                choice = self._choose(True if requested is True else str(requested))
                if (checkpoint := choice.checkpoint) is not None:
                    self._ranks.run_on_all(lambda: check_trainer_state(Path(checkpoint)))
            self.checkpoint, self.has_ended = choice.checkpoint, choice.ended
            parent = self.parent if choice.parent is None else Path(choice.parent)
            with attributes_held(self, parent=parent), self._naming_unreadable():
                self._ranks.run_on_all(lambda: self._note_origin(trial) if args.should_save else None)
                yield self.checkpoint

    def _note_origin(self, trial: Any) -> None:
        """Notes where the run begins, and tells of checkpoints that it will replace."""
        folder, begins_from = output_folder(self._trainer, trial), self.checkpoint
        checkpoint = None if begins_from is None else Path(begins_from)
        is_own = checkpoint is not None and checkpoint_files.is_inside(checkpoint, folder)
        found = [] if is_own else replaceable(folder)
        if found and self._trainer.is_world_process_zero():
            logger.warning(
                "output_dir: %s has checkpoints of an earlier run (the last is %s), which this run replaces: its "
                "ledger is kept as a folder ledger-N beside the new one, its checkpoints until the new run saves the "
                "same steps or save_total_limit removes them. To continue that one, call "
                "train(resume_from_checkpoint=True); to keep it, set another output_dir.",
                *(folder, checkpoint_files.lasting(found[0]).name),
            )
        if checkpoint is None:
            Origin.remove(folder)
        elif not is_own or checkpoint_files.is_of_trainer(checkpoint):
            Origin(checkpoint_files.lasting(checkpoint.resolve()), self.parent is not None).write(folder)

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
        """Locks the output folder against other runs, and cleans up after an interrupted one; for all ranks to call.

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
            self._ranks.run_on_all(lambda: checkpoint_files.put_back(lock.folder) if trainer.args.should_save else None)
            yield
        finally:
            self._is_held = False
            lock.release()

    def newest_checkpoint(self) -> str | None:
        """Returns the folder of the newest complete and intact checkpoint, or `None`; all ranks have to call it."""
        with self.holding_output():
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

    def _check_data(self) -> None:
        """Refuses ranks whose streams or evaluation sets differ."""
        if self._trainer.args.world_size == 1:
            return
        data = data_of_ranks(self._plan.streams, self._trainer.eval_dataset, self._plan.mixture.seed)
        described: dict[str, Any] = {}
        for source in data:
            described.setdefault(source.option, {})[source.name] = source.described()
        check_same(described, self._ranks)
        check_same_rows(data, self._ranks)

    def _choose(self, requested: str | bool | None) -> Choice:
        """Chooses a checkpoint, as the ranks that save do: rank 0, or one a node; `None` requests the newest, if any.

        Raises:
            ValueError: On every rank, if the requested checkpoint cannot be used.
        """
        args, allow_inexact = self._trainer.args, self._plan.config.allow_inexact
        folder, saves = Path(str(args.output_dir)), args.should_save
        among = self._usable_on_all_nodes(folder) if args.save_on_each_node else None
        own = self._ranks.run_on_all(lambda: choose(folder, requested, among, allow_inexact) if saves else None)
        gathered = self._ranks.gather(None if own is None else asdict(own))
        made = {rank: Choice(**fields) for rank, fields in enumerate(gathered) if fields is not None}
        for rank, other in made.items():
            if other.error is not None:
                raise InvalidValueError(
                    other.error if rank == 0 else f"Rank {rank}: {other.error}", option="resume_from_checkpoint"
                )
        steps = {
            rank: other.checkpoint and checkpoint_files.step_of(Path(other.checkpoint)) for rank, other in made.items()
        }
        if len(set(steps.values())) > 1:
            text = f": the nodes would begin after different steps, by rank {steps}. {_UNSEEN}"
            raise wrong_value("output_dir", text)
        choice = own or made[0]
        if self._trainer.is_world_process_zero():
            _warn(choice)
        if saves or choice.checkpoint is None or choice.is_origin:
            return choice
        # The folder may have another path on each node.
        path = requested if isinstance(requested, str) else str(folder / Path(choice.checkpoint).name)
        return replace(choice, checkpoint=path)

    def _usable_on_all_nodes(self, folder: Path) -> set[str]:
        """Names the checkpoints that every node can resume from on its own disk."""
        saves, allow_inexact = self._trainer.args.should_save, self._plan.config.allow_inexact

        def usable() -> list[str]:
            found = checkpoint_files.list_checkpoints(folder)
            return [checkpoint.name for checkpoint in found if why_not(checkpoint, allow_inexact) is None]

        own = self._ranks.run_on_all(lambda: usable() if saves else None)
        by_node = {rank: set(names) for rank, names in enumerate(self._ranks.gather(own)) if names is not None}
        common = set.intersection(*by_node.values())
        if common or not any(by_node.values()):
            return common
        # A disk was lost, or a node was replaced.
        has = (f"rank {rank}'s node has {', '.join(sorted(names)) or 'none'}" for rank, names in by_node.items())
        text = f": no checkpoint in {folder} can be resumed from on every node: {'; '.join(has)}. Copy one to all, or "
        raise wrong_value("resume_from_checkpoint", f"{text}begin a new run with another output_dir.")


def _warn(choice: Choice) -> None:
    """Logs which newer checkpoints are skipped and why, and the problem of the one in use."""
    for path, problem in choice.passed_over.items():
        logger.warning("Checkpoint %s is skipped: %s.", path, problem)
    if choice.is_origin:
        logger.warning("The run has no complete checkpoint of its own and begins again at %s.", choice.checkpoint)
    if choice.inexact is not None:
        logger.warning("Resumed inexactly from %s: %s.", choice.checkpoint, choice.inexact)
