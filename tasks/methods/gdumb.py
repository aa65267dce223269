"""GDumb: nothing but a balanced memory, and a model trained on it from scratch."""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from mixer.trainer.method import Method, RunContext, TaskContext
from mixer.utils.ranges import check_count
from replay.selection import ClassBalanced
from replay.selection.base import Offers
from tasks.methods.shared import load_tensors, require_task, save_tensors
from tasks.sequences import joined, pick
from tasks.sources.checks import require_labels
from tasks.task import Task, TaskSequence


def gdumb(sequence: TaskSequence, capacity: int, seed: int = 0) -> TaskSequence:
    """Replaces the training data of each task with a memory that is balanced over the classes so far.

    Prabhu et al. 2020, "GDumb: A Simple Approach that Questions Our Progress in Continual Learning", ECCV 2020, section
    3: a sampler keeps samples so that classes are equally large, and a model is trained on nothing else. Run it with
    `methods=[FromScratch()]`, `optimizer="fresh"` and no memory. Within a class samples are kept at random
    (`ClassBalanced`), and training is what the arguments say, without the paper's CutMix.

    Args:
        sequence: The tasks, with classes.
        capacity: Samples in memory.
        seed: Seed of what is kept.

    Returns:
        A sequence of the same tasks, evaluated on the same samples; task `k` is trained on the memory after task `k`.

    Raises:
        ValueError: If samples have no classes, or the sequence is task-incremental.
    """
    if sequence.scenario == "task":
        raise ValueError("gdumb: a memory of all tasks has no task of its own. Say scenario='class'.")
    num_classes = len(sequence.classes_seen(len(sequence) - 1))
    check_count("capacity", capacity, max(num_classes, 1), f"each of the {num_classes} classes needs a sample")
    selection, everything = ClassBalanced(), joined(sequence)[0].train
    selection.start(capacity, seed)
    held, first, tasks = np.zeros(capacity, dtype=np.int64), 0, list[Task]()
    for task in sequence:
        labels = require_labels(task.train, f"gdumb: task {task.name!r}")
        slots = selection.choose(Offers(len(labels), first, labels=labels))
        for number in np.flatnonzero(slots >= 0).tolist():  # the last one in a slot stays
            held[slots[number]] = first + number
        first += len(labels)
        train = pick(everything, np.sort(held[: selection.size]))
        tasks.append(Task(task.name, train, task.evaluation, description=task.description))
    return TaskSequence(tuple(tasks), sequence.scenario)


class FromScratch(Method):
    """Begins each task with the weights that the first one began with.

    The head must be whole, and the optimizer fresh for each task. Costs a copy of the model on the CPU.

    Raises:
        ValueError: When a task begins, if the model has grown; at the start of training outside of a continual run.
    """

    lasts_for_all_tasks = True
    _task: TaskContext | None = None

    def __init__(self) -> None:
        self._first: dict[str, Tensor] = {}

    def attach(self, run: RunContext) -> None:
        """Waits for a task; see `Method.attach`."""
        self._task = None

    def begin_task(self, task: TaskContext, model: nn.Module) -> None:
        """Takes the model back; see `Method.begin_task`."""
        self._task, state = task, model.state_dict()
        if not task.number:
            self._first = {name: tensor.detach().cpu().clone() for name, tensor in state.items()}
        if grown := [name for name, tensor in state.items() if tensor.shape != self._first[name].shape]:
            raise ValueError(f"{self.name}: the model has grown since the first task, in {grown}. Say head='whole'.")
        with torch.no_grad():
            model.load_state_dict(self._first)

    def prepare(self, model: nn.Module) -> None:
        """Refuses a run without tasks; see `Method.prepare`."""
        require_task(self, self._task)

    def save(self, folder: Path) -> None:
        """Writes the first weights; see `Method.save`."""
        if self._first:
            save_tensors(folder, first=self._first)

    def load(self, folder: Path, allow_inexact: bool = False) -> None:
        """Reads them; see `Method.load`."""
        if (state := load_tensors(folder, "cpu")) is not None:
            self._first = state["first"]
