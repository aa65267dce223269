"""A continual run: one task after the other, a Trainer run each, with a score of every task after every task."""

import copy
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors.torch import load_model, save_model
from torch import nn
from transformers import TrainingArguments, set_seed
from transformers.utils import logging

from mixer import MixingTrainer, Stream
from mixer.agreement import Agreement
from mixer.checkpoint import step_of
from mixer.method import Method
from mixer.policies import Policy
from replay import ReplayBuffer
from tasks.ends import Ends
from tasks.heads import HeadKind, as_head
from tasks.learning_curve import LearningCurve
from tasks.rehearsal import Rehearsal
from tasks.results import PAGE_FILE, write_metrics, write_page
from tasks.score_matrix import ScoreMatrix
from tasks.scoring import accuracy
from tasks.task import Task, TaskSequence

logger = logging.get_logger(__name__)

SCORES_FILE = "scores.json"

Optimizer = Literal["fresh", "kept"]
Score = Callable[[MixingTrainer, Task], float]


class ContinualRun:
    """Trains a model on a sequence of tasks, fills a memory, and scores all tasks after each one.

    Each task is a run of a `MixingTrainer` in a folder of its own, on the task's samples and the memory. A run that was
    killed goes on in the midst of its task and ends as if nobody had killed it; all ranks have to see its folder. There
    it writes `scores.json`, and after each task `metrics.json`; at the end `scores.html`, a page with heat maps.

    Args:
        model: The model; it is trained in place.
        sequence: The tasks.
        args: The training arguments of each task's run; `output_dir` is the whole's.
        head: What becomes of the output layer: `"whole"` has all classes from the start, `"growing"` gets those of a
            task when it begins, and in a `"masked"` one only the classes of a sample's own task compete; `None` takes
            the masked one for a task-incremental sequence, else the whole one.
        memory: A buffer, which is the stream `"memory"`; `None` trains without.
        second_draw: Name of a stream that draws from the memory once more, as `DERPlusPlus(second=...)` takes it;
            `None` for none.
        mixing: How much is replayed; `None` replays as many samples on top as there are new ones, in each draw, as in
            the published protocols.
        methods: What else takes part, such as `DER("memory")`; made anew for each task by a function of no arguments.
        batch_size: New samples of an update over all ranks; `None` takes that of the arguments.
        optimizer: Whether each task begins with a fresh optimizer or goes on with the one before.
        scores_before: Whether all tasks are scored before the first, as forward transfer needs it.
        curve_updates: After how many of its first updates each task is scored, besides before them, for the area under
            the learning curves (10 in the paper); `None` for no curves.
        score: Scores a task; `None` takes the accuracy, among the task's own classes in a task-incremental sequence.
        trainer_class: The trainer.
        **options: Further arguments of the trainer.

    Raises:
        ValueError: If something does not fit together.
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
        mixing: Policy | None = None,
        methods: Callable[[], Sequence[Method]] | None = None,
        batch_size: int | None = None,
        optimizer: Optimizer = "fresh",
        scores_before: bool = True,
        curve_updates: int | None = None,
        score: Score | None = None,
        trainer_class: type[MixingTrainer] = MixingTrainer,
        **options: Any,
    ):
        _check(args, optimizer, curve_updates, options)
        self.model, self.sequence, self.args, self.memory = model, sequence, args, memory
        self.rehearsal = Rehearsal(memory, second_draw, mixing, methods, sequence.names)
        self.head = as_head(head, sequence, args.seed)
        self.head.check(model, sequence, args, options, self.rehearsal.keeps_logits)
        self.folder = Path(str(args.output_dir))
        description = {"optimizer": optimizer, "has_memory": memory is not None, "head": self.head.kind}
        self._ends = Ends(self.folder, sequence.names, description)
        self.scores = ScoreMatrix(sequence.names)
        self._batch_size, self._optimizer_kind, self._score = batch_size, optimizer, score or self._accuracy
        self._scores_before, self._curve_updates = scores_before, curve_updates
        self._trainer_class, self._options = trainer_class, options
        self._optimizer: torch.optim.Optimizer | None = None
        self._saved_optimizer: Any = None

    def run(self, resume: bool = False) -> ScoreMatrix:
        """Trains on all tasks.

        Args:
            resume: Whether to go on with a run in the output folder, if there is one.

        Returns:
            The scores.

        Raises:
            ValueError: If there is a run already and it is not to be gone on with, or it is of other tasks.
        """
        agreement = Agreement(self.args.world_size, 0)
        num_done = self._begin(resume, agreement)
        for number in range(num_done, len(self.sequence)):
            self._train_task(number, resume and number == num_done)
            agreement.together(partial(self._save_end, number + 1))
        agreement.together(self._show)
        return self.scores

    # ---- One task ----

    def _train_task(self, number: int, resume: bool) -> None:
        task = self.sequence[number]
        self.head.begin(self.model, number)
        trainer = self._new_trainer(number, task)
        if number == 0 and self._scores_before and 0 not in self.scores.recorded:
            self._record(trainer, 0)
        checkpoint = trainer.newest_checkpoint() if resume else None
        self.scores.truncate(number, None if checkpoint is None else step_of(Path(checkpoint)))
        set_seed(self.args.seed + number)  # whatever was drawn before, by evaluation or by an earlier process
        with self.head.training():
            trainer.train(resume_from_checkpoint=checkpoint)
        self._optimizer = getattr(trainer.optimizer, "optimizer", trainer.optimizer)  # without accelerate's wrapper
        self.rehearsal.remember(trainer, task)
        self._record(trainer, number + 1)

    def _new_trainer(self, number: int, task: Task) -> MixingTrainer:
        args = copy.copy(self.args)
        args.output_dir = str(self._ends.folder_of(number))
        trainer = self._trainer_class(
            model=self.model,
            args=args,
            train_dataset=[Stream(task.name, task.train), *self.rehearsal.new_streams()],
            mixing=self.rehearsal.new_mixing(),
            methods=self.rehearsal.new_methods(),
            batch_size=self._batch_size,
            **self._options,
        )
        if self._optimizer_kind == "kept" and number:
            self._keep_optimizer(trainer)
        if self._curve_updates is not None:
            trainer.add_callback(LearningCurve(self._curve_updates, partial(self._record_curve, trainer, number)))
        return trainer

    def _keep_optimizer(self, trainer: MixingTrainer) -> None:
        """Goes on with the state of the task before."""
        state = self._saved_optimizer if self._optimizer is None else self._optimizer.state_dict()
        optimizer = trainer.create_optimizer()
        optimizer.load_state_dict(self.head.widen(state, optimizer))
        for group in optimizer.param_groups:  # a schedule has left them where the last task ended
            group["lr"] = group.get("initial_lr", group["lr"])

    def _record(self, trainer: MixingTrainer, after: int) -> None:
        scored = {task.name: self._score_of(trainer, task, f"after {after} tasks") for task in self.sequence}
        failures = {name: why for name, (_, why) in scored.items() if why is not None}
        self.scores.record(after, {name: score for name, (score, _) in scored.items()}, failures)

    def _record_curve(self, trainer: MixingTrainer, number: int, num_updates: int) -> None:
        score, _ = self._score_of(trainer, self.sequence[number], f"after {num_updates} of its updates")
        self.scores.record_batch(number + 1, num_updates, score)

    def _score_of(self, trainer: MixingTrainer, task: Task, when: str) -> tuple[float, str | None]:
        """Gives a score, or NaN and why there is none: one task's evaluation must not end the run."""
        try:
            return self._score(trainer, task), None
        except Exception as error:
            logger.warning("The evaluation of task %r %s failed: %r", task.name, when, error)
            return float("nan"), f"{type(error).__name__}: {error}"

    def _accuracy(self, trainer: MixingTrainer, task: Task) -> float:
        classes = task.classes if self.sequence.scenario == "task" else None
        return accuracy(trainer, task.evaluation, classes)

    # ---- State ----

    def _begin(self, resume: bool, agreement: Agreement) -> int:
        """Gives the number of tasks that are done, and takes up what they left."""
        path, writes = self.folder / SCORES_FILE, self.args.process_index == 0
        num_done = agreement.most(agreement.together(lambda: self._ends.find(resume) if writes else -1))
        if num_done < 0:
            self.scores.path = path if writes else None
            self.scores.truncate(0)
            self.head.begin(self.model, 0)
            agreement.together(lambda: self._save_end(0))
            return 0
        self.scores = ScoreMatrix.from_file(path)
        self.scores.path = path if writes else None
        agreement.together(lambda: self._take_up(num_done))
        return num_done

    def _take_up(self, num_done: int) -> None:
        end, self._optimizer = self._ends.end_of(num_done), None
        self.head.begin(self.model, max(num_done - 1, 0))
        load_model(self.model, end / "model.safetensors")
        self.rehearsal.load(end, self.sequence.tasks[:num_done])
        if self._optimizer_kind == "kept" and num_done:
            self._saved_optimizer = torch.load(end / "optimizer.pt", map_location="cpu", weights_only=True)

    def _save_end(self, num_done: int) -> None:
        if self.args.process_index == 0:
            self._ends.write(num_done, self._write_end)
            write_metrics(self.scores, self.folder)

    def _show(self) -> None:
        if self.args.process_index == 0:
            write_page({self.folder.name: self.scores}, self.folder / PAGE_FILE)

    def _write_end(self, end: Path) -> None:
        save_model(self.model, str(end / "model.safetensors"))
        if self._optimizer_kind == "kept" and self._optimizer is not None:
            torch.save(self._optimizer.state_dict(), end / "optimizer.pt")
        self.rehearsal.save(end)


def _check(args: TrainingArguments, optimizer: str, curve_updates: int | None, options: Mapping[str, Any]) -> None:
    if optimizer not in ("fresh", "kept"):
        raise ValueError(f"optimizer must be 'fresh' or 'kept', got {optimizer!r}.")
    if any(given is not None for given in options.get("optimizers", ())):
        raise ValueError("optimizers are made for each task: say args.optim or optimizer_cls_and_kwargs instead.")
    if args.fsdp or args.deepspeed:
        raise ValueError("ContinualRun saves whole models from one process: leave out fsdp and deepspeed, or use DDP.")
    if curve_updates is not None and curve_updates < 0:
        raise ValueError(f"curve_updates must be 0 or more, or None for no curves, got {curve_updates}.")
