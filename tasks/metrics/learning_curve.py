"""Scores of a task after each of its first steps."""

from collections.abc import Callable
from typing import Any

from transformers import TrainerCallback, TrainerState

from mixer.utils.random_state import RandomState


class LearningCurve(TrainerCallback):
    """Evaluates a task before its training and after each of its first steps (Chaudhry et al. 2019, 1812.00420).

    The state of the global random generators is restored afterwards, so evaluation does not change the training.

    Args:
        num_steps: Number of steps to evaluate after, `β` of the paper.
        record: Evaluates and stores a score, given the number of steps.
    """

    def __init__(self, num_steps: int, record: Callable[[int], None]):
        self._num_steps, self._record = num_steps, record

    def on_train_begin(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        """Scores a task that begins, unless it goes on from a checkpoint."""
        if state.global_step == 0:
            self._score(0)

    def on_step_end(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        """Scores the task after a step."""
        if state.global_step <= self._num_steps:
            self._score(state.global_step)

    def _score(self, num_steps: int) -> None:
        before = RandomState.capture()
        self._record(num_steps)
        before.restore()
