"""A continual run: one task after the other, a Trainer run each, with a score of every task after every task."""

import copy
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors.torch import load_model, save_model
from torch import nn
from transformers import TrainingArguments, set_seed
from transformers.utils import logging

from mixer import MixingTrainer, Stream
from mixer.agreement import Agreement
from mixer.checkpoint import STATE_FILE, begin_writing, complete, find_problem, read_json, write_json
from mixer.method import Method
from mixer.policies import Policy
from replay import ReplayBuffer, ReplayRatio, extract_features
from tasks.score_matrix import ScoreMatrix
from tasks.scoring import accuracy
from tasks.task import Task, TaskSequence

logger = logging.get_logger(__name__)

FORMAT_VERSION = 1
_STATE, _SCORES, _MEMORY = "continual.json", "scores.json", "memory"

Optimizer = Literal["fresh", "kept"]
Score = Callable[[MixingTrainer, Task], float]


class ContinualRun:
    """Trains a model on a sequence of tasks, fills a memory, and scores all tasks after each one.

    Each task is a run of a `MixingTrainer` in a folder of its own, on the task's samples and the memory. A run that was
    killed goes on in the midst of its task and ends as if nobody had killed it; all ranks have to see its folder.

    Args:
        model: The model; it is trained in place.
        sequence: The tasks.
        args: The training arguments of each task's run; `output_dir` is the whole's.
        memory: A buffer, which is the stream `"memory"`; `None` trains without.
        mixing: How much of it is replayed; `None` replays as many samples on top as there are new ones, as in the
            published protocols.
        methods: What else takes part, such as `DER("memory")`; made anew for each task by a function of no arguments.
        batch_size: New samples of an update over all ranks; `None` takes that of the arguments.
        optimizer: Whether each task begins with a fresh optimizer or goes on with the one before.
        scores_before: Whether all tasks are scored before the first, as forward transfer needs it.
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
        memory: ReplayBuffer | None = None,
        mixing: Policy | None = None,
        methods: Callable[[], Sequence[Method]] | None = None,
        batch_size: int | None = None,
        optimizer: Optimizer = "fresh",
        scores_before: bool = True,
        score: Score | None = None,
        trainer_class: type[MixingTrainer] = MixingTrainer,
        **options: Any,
    ):
        if optimizer not in ("fresh", "kept"):
            raise ValueError(f"optimizer must be 'fresh' or 'kept', got {optimizer!r}.")
        if memory is None and (mixing is not None or methods is not None):
            raise ValueError("mixing and methods say what a memory is for, but memory is None: give a ReplayBuffer.")
        if _MEMORY in sequence.names:
            raise ValueError(f"A task is called {_MEMORY!r}, which is the name of the memory's stream; rename it.")
        self.model, self.sequence, self.args, self.memory = model, sequence, args, memory
        self.folder = Path(str(args.output_dir))
        self._mixing, self._methods = mixing, methods
        self._batch_size, self._optimizer_kind, self._score = batch_size, optimizer, score or self._accuracy
        self._scores_before, self._trainer_class, self._options = scores_before, trainer_class, options
        self._optimizer: torch.optim.Optimizer | None = None
        self._saved_optimizer: Any = None
        self.scores = ScoreMatrix(sequence.names)

    def run(self, resume: bool = False) -> ScoreMatrix:
        """Trains on all tasks.

        Args:
            resume: Whether to go on with a run in the output folder, if there is one.

        Returns:
            The scores.

        Raises:
            ValueError: If there is a run already and it is not to be gone on with, or it is of other tasks.
        """
        num_done = self._begin(resume)
        for number in range(num_done, len(self.sequence)):
            self._train_task(number, resume and number == num_done)
        return self.scores

    # ---- One task ----

    def _train_task(self, number: int, resume: bool) -> None:
        task = self.sequence[number]
        trainer = self._new_trainer(number, task)
        if number == 0 and self._scores_before and 0 not in self.scores.recorded:
            self._record(trainer, 0)
        checkpoint = trainer.newest_checkpoint() if resume else None
        set_seed(self.args.seed + number)  # whatever was drawn before, by evaluation or by an earlier process
        trainer.train(resume_from_checkpoint=checkpoint)
        self._optimizer = getattr(trainer.optimizer, "optimizer", trainer.optimizer)  # without accelerate's wrapper
        self._remember(trainer, task)
        self._record(trainer, number + 1)
        self._save_end(number + 1)
        trainer.accelerator.wait_for_everyone()

    def _new_trainer(self, number: int, task: Task) -> MixingTrainer:
        args = copy.copy(self.args)
        args.output_dir = str(self._folder_of(number))
        streams = [Stream(task.name, task.train)]
        mixing = None
        if self.memory is not None:
            streams.append(Stream(_MEMORY, self.memory))
            mixing = ReplayRatio(0.5, additional=True) if self._mixing is None else copy.deepcopy(self._mixing)
        trainer = self._trainer_class(
            model=self.model,
            args=args,
            train_dataset=streams,
            mixing=mixing,
            methods=() if self._methods is None else list(self._methods()),
            batch_size=self._batch_size,
            **self._options,
        )
        if self._optimizer_kind == "kept" and number:
            self._keep_optimizer(trainer)
        return trainer

    def _keep_optimizer(self, trainer: MixingTrainer) -> None:
        """Goes on with the optimizer of the task before."""
        if self._optimizer is None:
            self._optimizer = trainer.create_optimizer()
            self._optimizer.load_state_dict(self._saved_optimizer)
        for group in self._optimizer.param_groups:  # a schedule has left them where the last task ended
            group["lr"] = group.get("initial_lr", group["lr"])
        trainer.optimizer = self._optimizer

    def _remember(self, trainer: MixingTrainer, task: Task) -> None:
        """Offers a whole task to a memory that is filled at a task's end."""
        if self.memory is not None and not self.memory.is_online:
            needs = self.memory.selection.needs
            features = extract_features(trainer, task.train) if "features" in needs else None
            self.memory.remember(task.name, task.train, features=features)

    def _record(self, trainer: MixingTrainer, after: int) -> None:
        scores: dict[str, float] = {}
        failures: dict[str, str] = {}
        for task in self.sequence:
            try:
                scores[task.name] = self._score(trainer, task)
            except Exception as error:  # one task's evaluation must not end the run
                logger.warning("The evaluation of task %r after %d tasks failed: %r", task.name, after, error)
                scores[task.name], failures[task.name] = float("nan"), f"{type(error).__name__}: {error}"
        self.scores.record(after, scores, failures)

    def _accuracy(self, trainer: MixingTrainer, task: Task) -> float:
        classes = task.classes if self.sequence.scenario == "task" else None
        return accuracy(trainer, task.evaluation, classes)

    # ---- State ----

    def _folder_of(self, number: int) -> Path:
        return self.folder / f"{number + 1:02d}-{self.sequence[number].name}"

    def _end_of(self, num_done: int) -> Path:
        return self._folder_of(num_done - 1) / "end" if num_done else self.folder / "start"

    @property
    def _description(self) -> dict[str, Any]:
        """What has to be the same for a run to be gone on with."""
        own = {"tasks": list(self.sequence.names), "optimizer": self._optimizer_kind}
        return {"format": FORMAT_VERSION, **own, "has_memory": self.memory is not None}

    def _begin(self, resume: bool) -> int:
        """Gives the number of tasks that are done, and takes up what they left."""
        agreement, writes = Agreement(self.args.world_size, 0), self.args.process_index == 0
        path = self.folder / _SCORES
        num_done = agreement.most(agreement.together(lambda: self._find(resume) if writes else -1))
        if num_done < 0:
            self.scores.path = path if writes else None
            self.scores.truncate(0)
            agreement.together(lambda: self._save_end(0))
            return 0
        self.scores = ScoreMatrix.from_file(path)
        self.scores.path = path if writes else None
        self.scores.truncate(num_done)
        agreement.together(lambda: self._take_up(num_done))
        return num_done

    def _find(self, resume: bool) -> int:
        """Gives the number of tasks that a run in the folder is done with, -1 if there is none."""
        path = self.folder / _STATE
        if not path.exists():
            return -1
        if not resume:
            raise ValueError(f"{self.folder} holds a continual run already: go on with it (resume=True) or move it.")
        state = read_json(path)
        for name, own in self._description.items():
            if state.get(name) != own:
                raise ValueError(f"The run in {self.folder} is another: its {name} is {state.get(name)}, not {own}.")
        for num_done in range(int(state["num_done"]), -1, -1):
            end = self._end_of(num_done)
            problem = find_problem(end)
            if problem is None:
                return num_done
            logger.warning("The run goes on before the end of task %d, as %s is damaged: %s", num_done, end, problem)
        raise ValueError(f"The run cannot be gone on with, as {end} is damaged: {problem}. Take another folder.")

    def _take_up(self, num_done: int) -> None:
        end, self._optimizer = self._end_of(num_done), None
        load_model(self.model, end / "model.safetensors")
        if self.memory is not None:
            self.memory.load(end / _MEMORY)
            for task in self.sequence.tasks[:num_done]:  # tells the buffer where it reads
                if task.name in self.memory.sources.names:
                    self.memory.remember(task.name, task.train, [])
        if self._optimizer_kind == "kept" and num_done:
            self._saved_optimizer = torch.load(end / "optimizer.pt", map_location="cpu", weights_only=True)

    def _save_end(self, num_done: int) -> None:
        if self.args.process_index != 0:
            return
        end = self._end_of(num_done)
        begin_writing(end)
        end.mkdir(parents=True, exist_ok=True)
        save_model(self.model, str(end / "model.safetensors"))
        if self._optimizer_kind == "kept" and self._optimizer is not None:
            torch.save(self._optimizer.state_dict(), end / "optimizer.pt")
        if self.memory is not None:
            self.memory.save(end / _MEMORY)
        state = {**self._description, "num_done": num_done}
        write_json(end / STATE_FILE, state)  # as whatever can be gone on from has
        complete(end)
        write_json(self.folder / _STATE, state)
