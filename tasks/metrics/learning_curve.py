"""How quickly a task is learnt: its score after each of its first updates."""

from collections.abc import Callable
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from mixer.utils.random_state import RandomState


class LearningCurve(TrainerCallback):
    """Scores a task before its training and after each of its first updates (Chaudhry et al. 2019, 1812.00420).

    What scoring draws from the global generators is given back, so that training goes on as without it.

    Args:
        num_updates: After how many updates the last score is taken, `β` of the paper.
        record: Takes a score and keeps it, given the number of updates.
    """

    def __init__(self, num_updates: int, record: Callable[[int], None]):
        self._num_updates, self._record = num_updates, record

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Scores a task that begins, unless it goes on from a checkpoint."""
        if state.global_step == 0:
            self._score(0)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Scores the task after an update."""
        if state.global_step <= self._num_updates:
            self._score(state.global_step)

    def _score(self, num_updates: int) -> None:
        before = RandomState.capture()
        self._record(num_updates)
        before.restore()
