"""What a task is scored by in a continual run, and scoring that neither ends a run nor lets ranks differ."""

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Real
from typing import Any

from torch import Tensor
from transformers.utils import logging

from mixer import MixingTrainer
from mixer.distributed.collectives import RemoteError
from tasks.scoring import accuracy, mean_loss
from tasks.task import Task, TaskSequence

logger = logging.get_logger(__name__)


@dataclass(frozen=True)
class Score:
    """What a task is scored by.

    Args:
        measure: Gives the score of a task. Every rank calls it, and it has to give the same on all; where it talks
            between ranks, an error has to come on all of them too.
        metric: What it is called.
        higher_is_better: Whether a higher score is a better one; of losses it is not.

    Raises:
        TypeError: If it cannot be called.
    """

    measure: Callable[[MixingTrainer, Task], float]
    metric: str = "score"
    higher_is_better: bool = True

    def __post_init__(self) -> None:
        if not callable(self.measure):
            raise TypeError(f"Score.measure must be a function of a trainer and a task, got {self.measure!r}.")


def as_score(score: Score | str | None, sequence: TaskSequence) -> Score:
    """Makes a score of what a user gives.

    Args:
        score: A score; `"accuracy"`, among a task's own classes in a task-incremental sequence; `"loss"`, the mean per
            item; or `None` for the accuracy where all tasks have classes, else the loss.
        sequence: The tasks.

    Returns:
        The score.

    Raises:
        ValueError: If there is none of that name, or tasks without classes were to have an accuracy.
        TypeError: If it is something else.
    """
    without = [task.name for task in sequence if task.classes is None]
    if score is None:
        score = "loss" if without else "accuracy"
    if score == "loss":
        return Score(lambda trainer, task: mean_loss(trainer, task.evaluation), "loss", higher_is_better=False)
    if score == "accuracy":
        if without:
            raise ValueError(f"score='accuracy' needs classes, which the tasks {without} have not: say score='loss'.")
        own = sequence.scenario == "task"
        return Score(
            lambda trainer, task: accuracy(trainer, task.evaluation, task.classes if own else None), "accuracy"
        )
    if isinstance(score, str):
        raise ValueError(f"score must be 'accuracy', 'loss' or a Score, got {score!r}.")
    if not isinstance(score, Score):
        raise TypeError(
            f"score must be 'accuracy', 'loss' or a Score, got {type(score).__name__}. Of a function make one that "
            "says which way is better: Score(function, metric='f1', higher_is_better=True)."
        )
    return score


def score_of(score: Score, trainer: MixingTrainer, task: Task, when: str) -> tuple[float, str | None]:
    """Scores a task; what goes wrong on any rank is told, and the run goes on.

    Args:
        score: The score.
        trainer: The trainer.
        task: The task.
        when: When that is, for the warning.

    Returns:
        The score, or NaN and why there is none; the same on every rank.
    """
    value, why = _attempt(score, trainer, task)
    parts = [json.loads(part) for part in trainer._rank_sync.gather_bytes(json.dumps([repr(value), why]).encode())]
    reasons = {rank: reason for rank, (_, reason) in enumerate(parts) if reason is not None}
    if reasons:
        # What a rank says of another one is worth less than what that one says of itself.
        rank = min(reasons, key=lambda rank: (reasons[rank].startswith(RemoteError.__name__), rank))
        why = reasons[rank] if len(parts) == 1 else f"rank {rank}: {reasons[rank]}"
    elif len({written for written, _ in parts}) > 1:
        why = f"ranks gave different scores, {[float(written) for written, _ in parts]}: reduce them over the ranks"
    if why is None:
        return value, None
    logger.warning("The evaluation of task %r %s failed: %s", task.name, when, why)
    return math.nan, why


def _attempt(score: Score, trainer: MixingTrainer, task: Task) -> tuple[float, str | None]:
    try:
        value: Any = score.measure(trainer, task)  # a function of the user's may give anything
        if isinstance(value, Tensor) and value.dim() == 0:
            value = value.item()
        if not isinstance(value, Real):
            raise TypeError(f"the score must be a number, got {value!r}")
        return float(value), None
    except Exception as error:
        return math.nan, f"{type(error).__name__}: {error}"
