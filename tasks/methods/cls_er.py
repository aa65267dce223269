"""CLS-ER: replayed samples are held to two averaged copies of the model, a quick and a slow one."""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from mixer import MixingTrainer
from mixer.loading.loaded_step import StepBatch
from mixer.models.side_state import frozen_copy
from mixer.run.hooks import ForwardResult
from mixer.trainer.method import RunContext
from mixer.utils.ranges import check_decay, check_range
from replay.shared.random_numbers import RandomNumbers
from tasks.methods.shared import TaskContext, TaskMethod, Tensors, class_logits, load_tensors, save_tensors
from tasks.score import accuracy
from tasks.task import Task

_COPIES = ("plastic", "stable")


class CLSER(TaskMethod):
    """Holds replayed samples to the logits of the one of two averaged copies that is surer of their class.

    Arani, Sarfraz and Zonooz 2022, "Learning Fast, Learning Slow: A General Continual Learning Method based on
    Complementary Learning System", arXiv:2201.12604, equations 1 and 2: to the loss of all samples comes `λ` times the
    mean over the replayed ones, and over classes, of the squared difference of logits. After a step a copy becomes
    `α copy + (1 - α) model` with its own probability, the *plastic* one more often than the *stable* one;
    `α = min(1 - 1 / (n + 1), decay)` in step n. The paper predicts by the stable copy: `score=Score(method.score)`.

    Costs two copies of the model and two forwards a step. With `strength=0` it is a slow copy beside plain replay,
    without a forward, for samples without classes too: `mean_loss(..., model=method.copies[-1])` is its loss.

    Args:
        strength: `λ`, 0 or more; about 0.1 in the paper.
        decay: Largest `α`, in [0, 1); 0.999 in the paper. Choose less where a run has few steps.
        plastic_rate: Probability that a step moves the plastic copy.
        stable_rate: The same for the stable copy; the authors' code starts from 0.7.

    Raises:
        ValueError: If a value is outside its range; when the trainer is made, if there is no memory; at the start of
            training outside of a continual run, if samples have no classes, in a task-incremental sequence, or if the
            output layer grows.

    Example:
        >>> method = CLSER(decay=0.99)
        >>> options = {"methods": [method], "score": Score(method.score, metric="accuracy")}  # doctest: +SKIP
        >>> run = ContinualRun(model, sequence, args, memory=ReplayBuffer(500), **options)  # doctest: +SKIP
    """

    needs = frozenset({"whole weights"})
    needs_all_logits = lasts_for_all_tasks = True

    def __init__(
        self, strength: float = 0.1, decay: float = 0.999, plastic_rate: float = 0.9, stable_rate: float = 0.1
    ):
        check_range("strength", strength, 0.0, float("inf"), "0.1 is usual, and 0 holds to nothing")
        check_decay("decay", decay, "0.999 is usual")
        check_range("plastic_rate", plastic_rate, 0.0, 1.0, "it is a probability")
        check_range("stable_rate", stable_rate, 0.0, plastic_rate, "the stable copy moves less often")
        self.strength, self.decay, self.rates = float(strength), float(decay), (float(plastic_rate), float(stable_rate))
        self.needs_classes = strength > 0.0
        self.copies: list[nn.Module] = []
        self._loaded: dict[str, Tensors] | None = None
        self._num_steps = 0

    def attach(self, run: RunContext) -> None:
        """Looks for a memory, and waits for a task; see `Method.attach`."""
        if not run.memories:
            raise ValueError(f"{self.name} needs a memory. Give one, such as memory=ReplayBuffer(500).")
        super().attach(run)

    def begin_task(self, task: TaskContext, model: nn.Module) -> None:
        """Copies the model before the first task; see `TaskMethod.begin_task`."""
        super().begin_task(task, model)
        if not task.number or not self.copies:
            self.copies = [frozen_copy(model) for _ in _COPIES]
            self._num_steps = 0

    def prepare(self, model: nn.Module) -> None:
        """Applies the loaded state; see `Method.prepare`."""
        super().prepare(model)
        if self._loaded is not None:
            self._num_steps = int(self._loaded["steps"]["count"])
            for name, own in zip(_COPIES, self.copies, strict=True):
                own.load_state_dict(self._loaded[name], strict=False)  # tied weights are saved once
            self._loaded = None
        models = self.copies[0], self.run.passes.model
        shapes, now = ([weight.shape for weight in own.parameters()] for own in models)
        if shapes != now:
            raise ValueError(f"{self.name}: the model has grown since it was copied. Leave head='growing' out.")

    def term(self, trained: ForwardResult) -> Tensor | None:
        """Returns λ times the mean distance of replayed samples, this rank's part; see `Method.term`."""
        rows = self.run.memory_rows(trained)
        if not rows.any() or not self.strength:
            return None
        inputs, num_rows = self.run.passes.prepare_inputs(trained.micro.inputs), len(rows)
        with torch.no_grad():
            plastic, stable = (class_logits(own(**inputs), num_rows, self.name)[rows] for own in self.copies)
        labels = inputs["labels"][rows, None]
        is_plastic = plastic.softmax(dim=1).gather(1, labels) > stable.softmax(dim=1).gather(1, labels)
        own = class_logits(trained.output, num_rows, self.name)[rows]
        distances = (own - torch.where(is_plastic, plastic, stable)).square().mean(dim=1)
        return self.run.mean_over_step(self.strength * distances, trained, self.run.num_memory_rows(trained))

    @torch.no_grad()
    def close(self, batch: StepBatch) -> None:
        """Moves the copies; see `Method.close`."""
        model, step = self.run.passes.model, np.array([self._num_steps], dtype=np.int64)
        alpha = min(1.0 - 1.0 / (self._num_steps + 1), self.decay)
        for number, (own, rate) in enumerate(zip(self.copies, self.rates, strict=True)):
            if RandomNumbers(self.run.seed, number).uniforms(step)[0] < rate:
                for slow, fast in zip(own.parameters(), model.parameters(), strict=True):
                    slow.lerp_(fast, 1.0 - alpha)
                for slow_buffer, fast_buffer in zip(own.buffers(), model.buffers(), strict=True):
                    slow_buffer.copy_(fast_buffer)
        self._num_steps += 1

    def settings(self) -> str:
        """Returns the constants; see `Method.settings`."""
        return f"{self.name}({self.strength}, {self.decay}, {self.rates[0]}, {self.rates[1]})"

    def save(self, folder: Path) -> None:
        """Writes the copies; see `Method.save`."""
        if self.copies:
            tensors = [{**dict(own.named_parameters()), **dict(own.named_buffers())} for own in self.copies]
            count = {"count": torch.tensor(self._num_steps)}
            save_tensors(folder, steps=count, **dict(zip(_COPIES, tensors, strict=True)))

    def load(self, folder: Path, allow_inexact: bool = False) -> None:
        """Reads them; see `Method.load`."""
        self._loaded = load_tensors(folder, "cpu")

    def score(self, trainer: MixingTrainer, task: Task) -> float:
        """Returns the accuracy of the stable copy on a task.

        Args:
            trainer: The trainer.
            task: The task.
        """
        return accuracy(trainer, task.evaluation, model=self.copies[-1] if self.copies else None)
