"""A continual run: one Trainer run per task, and an evaluation of all tasks after each."""

import gc
import inspect
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
from torch import nn
from transformers import TrainingArguments, set_seed

from mixer import MixingTrainer, Stream
from mixer.checkpoint.checkpoint_files import step_of
from mixer.checkpoint.lock import FolderLock
from mixer.distributed.collectives import RankSync
from mixer.distributed.consistency import check_shared
from mixer.utils.data_set import DataSet
from mixer.utils.errors import InvalidValueError
from mixer.utils.resume_hint import resumed_with
from replay import ReplayBuffer
from replay.storage.sources import fingerprint
from tasks.continual.continual_checks import (
    Optimizer,
    check_added_parameters,
    check_classes,
    check_engine,
    check_evaluation,
    check_options,
    check_score_memory,
    check_types,
    check_values,
    warn_of_same_rows,
)
from tasks.continual.copies import ModelCopies
from tasks.continual.cost import write_cost
from tasks.continual.kept_optimizer import KeptOptimizer
from tasks.continual.model_file import ModelFile
from tasks.continual.rehearsal import Methods, Mixing, Rehearsal
from tasks.continual.scoring import Scoring
from tasks.continual.task_checkpoints import TaskCheckpoints, read_pace, remove_run, write_metrics
from tasks.heads import HeadKind, as_head
from tasks.metrics.score_matrix import SCORES_FILE, ScoreMatrix
from tasks.score import Score, as_score
from tasks.task import TaskSequence

# Training arguments that may change when a run resumes.
_SETTINGS = ("learning_rate", "num_train_epochs", "max_steps", "weight_decay", "per_device_train_batch_size", "seed")
_UNSEEN = "A continual run is kept by rank 0 and read by all: put output_dir on a file system that all nodes share."


class ContinualRun:
    """Trains a model on a sequence of tasks, fills a memory, and evaluates all tasks after each one.

    Each task is a run of a `MixingTrainer` in its own folder, on the task's samples and the memory. An interrupted run
    resumes in the middle of its task and ends exactly as an uninterrupted one; all ranks need access to its folder. The
    run writes `scores.json` there, and `metrics.json` after each task; `mixer report FOLDER` makes a page of them.

    Args:
        model: The model; it is trained in place. FSDP2 and DeepSpeed train a copy of it in each task, whose weights it
            has when the task ends: it stays whole, on the CPU of each rank.
        sequence: The tasks.
        args: The training arguments of each task; `output_dir` is the folder of the whole run.
        head: The output layer: `"whole"` has all classes from the start, `"growing"` adds the classes of a task when it
            begins, and in a `"masked"` one only the classes of a sample's own task compete; `None` uses the masked head
            for a task-incremental sequence, else the whole one.
        memory: A buffer, which becomes the stream `"memory"`; `None` trains without a memory.
        second_draw: Name of a second stream that draws from the memory, for `DERPlusPlus(second=...)`; `None` for none.
        mixing: The replay policy, which goes on from task to task: a policy, its name, weights of new samples and of
            the memory in this order, or a function, as in the trainer. `None` replays as many samples on top as there
            are new ones, per draw, as in the published protocols. `ReplayBound` gets a memory for each task, of equal
            parts of the capacity, filled at the end of its task.
        methods: Methods, such as `DER("memory")`: a function without arguments creates new ones for each task; those of
            a list last for all tasks and keep their state.
        batch_size: New samples per step over all ranks; `None` uses the training arguments.
        optimizer: `"fresh"` creates an optimizer for each task, `"kept"` continues with the previous one: with Adam and
            a memory try both.
        scores_before: Whether to evaluate all tasks before the first, as forward transfer requires.
        score: `"accuracy"`, among the task's own classes in a task-incremental sequence, `"loss"`, or your own `Score`;
            `None` uses the accuracy if all tasks have classes, else the loss.
        score_steps: Number of steps after which the tasks seen so far are scored, again and again, for the anytime
            accuracy and the stability gap; `None` scores at the ends of tasks only.
        score_samples: Samples of each evaluation set that are scored then, drawn once; `None` for all.
        held_out: Evaluation sets that are no task, by name, scored with the tasks: what the model could do before; or a
            `Score` that has data of its own, such as `lm_eval_score`.
        trainer_class: The trainer.
        **options: Further arguments of the trainer.

    Raises:
        ValueError: If arguments do not fit together.
        TypeError: If an argument has the wrong type.
    """

    def __init__(
        self,
        model: nn.Module,
        sequence: TaskSequence,
        args: TrainingArguments,
        *,
        head: HeadKind | None = None,
        memory: ReplayBuffer | None = None,
        second_draw: str | None = None,
        mixing: Mixing | None = None,
        methods: Methods | None = None,
        batch_size: int | None = None,
        optimizer: Optimizer = "fresh",
        scores_before: bool = True,
        score: Score | str | None = None,
        score_steps: int | None = None,
        score_samples: int | None = None,
        held_out: Mapping[str, DataSet] | None = None,
        trainer_class: type[MixingTrainer] = MixingTrainer,
        **options: Any,
    ):
        check_types(model, sequence, args, memory, methods, trainer_class)
        check_options(options, trainer_class, inspect.signature(ContinualRun).parameters)
        check_values(optimizer, scores_before, score_steps, score_samples, options)
        self.model, self.sequence, self.args, self.memory = model, sequence, args, memory
        self.rehearsal = Rehearsal(memory, second_draw, mixing, methods, sequence)
        if self.rehearsal.adds_parameters:
            check_added_parameters(args, optimizer)
        check_classes(model, sequence)
        warn_of_same_rows(sequence, args)
        check_evaluation(self.rehearsal.needs, options.get("eval_dataset"), sequence)
        self.head = as_head(head, sequence, args.seed)
        self.head.check(model, args, options, self.rehearsal.keeps_logits)
        self.scoring = Scoring(as_score(score, sequence), sequence, held_out, score_steps, score_samples)
        for given in self.scoring.scores:
            check_score_memory(given, memory, self.rehearsal.has_one_memory)
        self.folder, self._batch_size = Path(str(args.output_dir)), batch_size
        self._keeps_optimizer, self._optimizer = optimizer == "kept", KeptOptimizer(self.head)
        self._scores_before, self._trainer_class, self._options = scores_before, trainer_class, options
        self._model_file, self._copies = ModelFile(model), ModelCopies(args)
        self._task_checkpoints = TaskCheckpoints(self.folder, sequence.names, self._description, self._settings)
        self._num_done: int | None = None  # until it has begun
        self._pace = pd.DataFrame()
        self._lock, self._is_held = FolderLock(self.folder), False
        self._goes_on = self._has_begun = False
        self._first_trainer: MixingTrainer | None = None

    @property
    def scores(self) -> ScoreMatrix:
        """The scores so far."""
        return self.scoring.matrix

    def check(self) -> None:
        """Creates the trainer of the first task, so that wrong arguments raise before anything is written."""
        self.rehearsal.refuse_earlier_tasks()
        self._first_trainer = self._new_trainer(0)
        check_engine(self._first_trainer, self._keeps_optimizer, self.memory)

    def hold_output(self) -> None:
        """Locks the output folder until `run` ends or fails; all ranks have to call it.

        Raises:
            ValueError: If another run uses the folder; it is named.
            OSError: If the lock cannot be written; the other ranks raise a `RemoteError`.
        """
        if not self._is_held:
            writes = self.args.process_index == 0
            self._new_agreement().run_on_all(lambda: self._lock.acquire() if writes else None)
            self._is_held = True

    def release_output(self) -> None:
        """Unlocks the output folder."""
        self._lock.release()
        self._is_held = False

    def begin(self, resume: bool = False, overwrite: bool = False) -> int:
        """Resumes the run in the output folder, or starts one; `run` calls it if needed.

        The folder stays locked until `run` ends or `release_output` is called.

        Args:
            resume: Whether to resume a run in the output folder, if there is one.
            overwrite: Whether to remove the state of a run in the output folder, and start anew.

        Returns:
            The number of finished tasks.

        Raises:
            ValueError: If there is a run and neither `resume` nor `overwrite` is set, or it is a different one; or if
                both are set.
        """
        if resume and overwrite:
            raise InvalidValueError.about("overwrite", "removes the run and resume continues it: set one.")
        if overwrite and self._has_begun:
            raise InvalidValueError.about("overwrite", "needs a new ContinualRun: this one holds what its run left.")
        if self._first_trainer is None:
            self.check()
        self.hold_output()
        try:
            if overwrite:
                writes = self.args.process_index == 0
                self._new_agreement().run_on_all(lambda: remove_run(self.folder) if writes else None)
            return self._begin(resume)
        except BaseException:
            self.release_output()
            raise

    def _begin(self, resume: bool) -> int:
        rank_sync, writes = self._new_agreement(), self.args.process_index == 0
        check_shared(self.folder, writes, rank_sync, _UNSEEN)
        found = rank_sync.max_over_ranks(
            rank_sync.run_on_all(lambda: self._task_checkpoints.find(resume) if writes else -1)
        )
        self._goes_on, self._num_done = found >= 0, max(found, 0)
        path = self.folder / SCORES_FILE
        if self._goes_on:
            self._first_trainer = None  # it knows nothing of what is there
            self.scoring.matrix = rank_sync.run_on_all(partial(ScoreMatrix.from_file, path))
            rank_sync.run_on_all(partial(self._load_end, found))
        else:
            self.scoring.matrix = self.scoring.new_matrix()
            rank_sync.run_on_all(partial(self._save_end, 0))
        self.scores.path = path if writes else None
        self.scores.write()
        self._has_begun = True
        return self._num_done

    def run(self, resume: bool = False, overwrite: bool = False) -> ScoreMatrix:
        """Trains on all tasks.

        Args:
            resume: Whether to resume a run in the output folder, if there is one; see `begin`.
            overwrite: Whether to remove the state of a run in the output folder; see `begin`.

        Returns:
            The scores.

        Raises:
            ValueError: As `begin`; or if no task can be evaluated before the first one.
        """
        rank_sync = self._new_agreement()
        begun = self.begin(resume, overwrite) if self._num_done is None else self._num_done
        freezes = gc.get_freeze_count() == 0
        if freezes:
            gc.freeze()  # accelerate collects garbage in each `train`, over all objects that are not frozen
        try:
            self.hold_output()  # where an error ended it before, others were let in
            for number in range(begun, len(self.sequence)):
                with resumed_with("run(resume=True)"):
                    self._train_task(number, self._goes_on and number == begun)
                rank_sync.run_on_all(partial(self._save_end, number + 1))
            self._num_done = None
        finally:
            self.release_output()
            if freezes:
                gc.unfreeze()
        return self.scores

    def _new_agreement(self) -> RankSync:
        return RankSync(self.args.world_size, self.args.ddp_timeout_delta)

    # ---- One task ----

    def _train_task(self, number: int, resume: bool) -> None:
        trainer, self._first_trainer = self._first_trainer or self._new_trainer(number), None
        self.head.begin(trainer.auxiliary_passes.model, number)  # a copy, for some engines
        if self._keeps_optimizer and number:
            self._optimizer.give(trainer)
        scores_before = number == 0 and self._scores_before and 0 not in self.scores.recorded
        trainer.add_callback(self.scoring.callback(trainer, number, scores_before))
        checkpoint = trainer.newest_checkpoint() if resume else None
        self.scores.truncate(number, None if checkpoint is None else step_of(Path(checkpoint)))
        set_seed(self.args.seed + number)  # whatever was drawn before, by evaluation or by an earlier process
        self.rehearsal.begin_task(trainer, number)
        with self.head.training():
            trainer.train(resume_from_checkpoint=checkpoint)
            if self._keeps_optimizer:
                self._optimizer.take(trainer)
            self.rehearsal.end_task(trainer, number)
        self.scoring.record(trainer, number + 1)
        self._copies.take_back(trainer, self.model)

    def _new_trainer(self, number: int) -> MixingTrainer:
        self.head.begin(self.model, number)
        args, task = self._copies.arguments(str(self._task_checkpoints.folder_of(number))), self.sequence[number]
        return self._trainer_class(
            model=self._copies.new(self.model),
            args=args,
            train_dataset=[Stream(task.name, task.train), *self.rehearsal.new_streams()],
            batch_size=self._batch_size,
            **{**self._options, **self.rehearsal.trainer_options(number, self._options.get("eval_dataset"))},
        )

    # ---- State ----

    @property
    def _description(self) -> dict[str, Any]:
        """Properties that must not change between start and resume."""
        return {
            "data": [[fingerprint(task.train), fingerprint(task.evaluation)] for task in self.sequence],
            "scenario": self.sequence.scenario,
            "optimizer": "kept" if self._keeps_optimizer else "fresh",
            "has_memory": self.memory is not None,
            "head": self.head.kind,
            "score": self.scoring.score.metric,
            "held_out": self.scoring.fingerprints,
            **self.rehearsal.description,
        }

    @property
    def _settings(self) -> dict[str, Any]:
        """Settings that may change on resume; changes are logged."""
        of_arguments = {name: getattr(self.args, name) for name in _SETTINGS}
        return {**of_arguments, "batch_size": self._batch_size, **self.rehearsal.settings}

    @property
    def _limits_checkpoints(self) -> bool:
        """Whether finished tasks keep no checkpoints, since the state at their end is all that is gone on with."""
        return (self.args.save_total_limit or 0) > 0

    def _load_end(self, num_done: int) -> None:
        end = self._task_checkpoints.end_of(num_done)
        self.head.begin(self.model, max(num_done - 1, 0))
        self._model_file.load(end)
        self.rehearsal.load(end, self.sequence.tasks[:num_done])
        if self._keeps_optimizer and num_done:
            self._optimizer.load(end)
        self._pace = read_pace(self.folder, self.sequence.names[:num_done])

    def _save_end(self, num_done: int) -> None:
        if self.args.process_index == 0:
            self._task_checkpoints.write(num_done, self._write_end)
            if self._limits_checkpoints:
                self._task_checkpoints.remove_checkpoints(num_done)
            names = self.sequence.names[:num_done]
            new = read_pace(self.folder, names, first=max(num_done - 1, 0))  # earlier ledgers stay as they are
            self._pace = pd.concat([self._pace, new]) if len(self._pace) else new
            write_metrics(self.scores, self._pace, self.folder)

    def _write_end(self, end: Path) -> None:
        self._model_file.save(end)
        self._optimizer.save(end)
        self.rehearsal.save(end)
        write_cost(self.model, end, not self._limits_checkpoints, self.rehearsal.buffers)
