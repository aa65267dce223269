"""This toolkit: a `ContinualRun` with a reservoir."""

from typing import Any

import numpy as np
import torch
from transformers import TrainingArguments, set_seed

from benchmarks.common import QUIET
from benchmarks.continual.command import QuietTrainer
from benchmarks.peers.clock import Clock
from benchmarks.peers.continual_work import BATCH_SIZE, EVALUATION_BATCH_SIZE, PROTOCOLS, read_tasks
from mixer import MixingTrainer
from replay import ReplayBuffer
from tasks.continual.continual import ContinualRun
from tasks.score import Score, accuracy
from tasks.task import Task


class Timed:
    """Scores tasks, after the last one only, and notes when each task began and ended without that.

    Args:
        num_tasks: Number of tasks.
    """

    def __init__(self, num_tasks: int):
        self._num_tasks, self._num_scored = num_tasks, 0
        self.task_seconds: list[float] = []  # at the end of each task, from the first on
        self.clock = Clock()

    def __call__(self, trainer: MixingTrainer, task: Task) -> float:
        """Gives the accuracy on a task; in all rounds before the last 0 without looking."""
        if self._num_scored % self._num_tasks == 0:
            self.task_seconds.append(self.clock.stop()["seconds"])
        self._num_scored += 1
        is_last = self._num_scored > (self._num_tasks - 1) * self._num_tasks
        score = accuracy(trainer, task.evaluation, batch_size=EVALUATION_BATCH_SIZE) if is_last else 0.0
        if self._num_scored % self._num_tasks == 0:
            self.clock.go_on()
        return score


def training(options: dict[str, Any]) -> dict[str, Any]:
    """Trains on all tasks.

    Args:
        options: Of the contest.

    Returns:
        `accuracy` in per cent, `seconds`, `processor_seconds`, and `task_seconds`, which add up.
    """
    torch.set_num_threads(options["threads"])
    protocol, tasks = PROTOCOLS[options["protocol"]], read_tasks(options)
    set_seed(options["seed"])
    arguments = TrainingArguments(
        options["folder"],
        seed=options["seed"],
        num_train_epochs=protocol.epochs,
        per_device_train_batch_size=2 * BATCH_SIZE,
        optim=protocol.optim,
        learning_rate=protocol.learning_rate,
        lr_scheduler_type="constant",
        max_grad_norm=0.0,
        **QUIET,
    )
    timed = Timed(len(tasks))
    run = ContinualRun(
        protocol.model(),
        tasks,
        arguments,
        memory=ReplayBuffer(protocol.capacity, "Reservoir", is_online=False),
        batch_size=BATCH_SIZE,
        optimizer="kept",
        scores_before=False,
        score=Score(timed, "accuracy"),
        trainer_class=QuietTrainer,
    )
    scores = run.run()
    return {
        "accuracy": 100 * float(np.mean(scores.scores[-1])),
        "seconds": timed.clock.seconds,
        "processor_seconds": timed.clock.processor_seconds,
        "task_seconds": timed.task_seconds,
    }
