"""Scores of a continual run: of all tasks before and after each, and of those seen so far while one is learnt."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from transformers import TrainerCallback, TrainerState

from mixer import MixingTrainer
from mixer.utils.random_state import RandomState
from tasks.metrics.score_matrix import ScoreMatrix
from tasks.score import Score, score_of
from tasks.task import Task, TaskSequence

_BETA = 10  # of the paper


class Scoring:
    """Scores the tasks of a run, and held-out sets beside them.

    Args:
        score: What a score is.
        sequence: The tasks.
        held_out: Data sets that are no task, by name.
        curve_steps: Number of first steps of each task after which it is scored; `None` for no curves.
        score_steps: After how many steps the tasks seen so far are scored, again and again; `None` for never.
    """

    def __init__(
        self,
        score: Score,
        sequence: TaskSequence,
        held_out: Mapping[str, Any] | None,
        curve_steps: int | None,
        score_steps: int | None,
    ):
        self.score, self._sequence = score, sequence
        self._held_out = [Task(name, dataset, dataset) for name, dataset in (held_out or {}).items()]
        self._curve_steps, self._score_steps = curve_steps, score_steps
        self.matrix = self.new_matrix()

    def new_matrix(self) -> ScoreMatrix:
        """Returns an empty matrix."""
        beta = _BETA if self._curve_steps is None else self._curve_steps
        names, held_out = self._sequence.names, [task.name for task in self._held_out]
        return ScoreMatrix(names, self.score.higher_is_better, self.score.metric, beta, held_out=held_out)

    def record(self, trainer: MixingTrainer, after: int) -> None:
        """Scores all tasks and held-out sets after a number of tasks."""
        when = f"after {after} tasks"
        scored = {task.name: self.of_task(trainer, task, when) for task in self._sequence}
        failures = {name: why for name, (_, why) in scored.items() if why is not None}
        self.matrix.record(after, {name: score for name, (score, _) in scored.items()}, failures)
        if self._held_out:
            others = {task.name: self.of_task(trainer, task, when)[0] for task in self._held_out}
            self.matrix.record_held_out(after, others)

    def record_before(self, trainer: MixingTrainer) -> None:
        """Scores all tasks before the first.

        Raises:
            ValueError: If none of them can be scored.
        """
        self.record(trainer, 0)
        reasons = {name: why for (_, name), why in self.matrix.failures.items()}
        if len(reasons) == len(self._sequence):
            raise ValueError(
                f"score: no task could be scored before the first, so that nothing would come of the run: {reasons}. "
                "Give a score that fits the model and the samples, Score(function, metric=...)."
            )

    def callbacks(self, trainer: MixingTrainer, number: int, scores_before: bool) -> list[TrainerCallback]:
        """Returns what scores tasks while one is trained.

        Args:
            trainer: The trainer of the task.
            number: Number of the task, from 0.
            scores_before: Whether all tasks are scored before its first step.
        """
        curve, every = self._curve_steps, self._score_steps
        found: list[TrainerCallback] = []
        if scores_before:
            found.append(AfterSteps(lambda _: False, lambda _: self.record_before(trainer)))
        if curve is not None:
            found.append(AfterSteps(lambda step: step <= curve, partial(self._record_curve, trainer, number)))
        if every is not None:
            found.append(AfterSteps(lambda step: step % every == 0, partial(self._record_step, trainer, number)))
        return found

    def _record_curve(self, trainer: MixingTrainer, number: int, num_steps: int) -> None:
        score, _ = self.of_task(trainer, self._sequence[number], f"after {num_steps} of its steps")
        self.matrix.record_batch(number + 1, num_steps, score)

    def _record_step(self, trainer: MixingTrainer, number: int, num_steps: int) -> None:
        when = f"after {num_steps} steps of {self._sequence[number].name!r}"
        seen = self._sequence.tasks[: number + 1]
        scores = {task.name: self.of_task(trainer, task, when)[0] for task in seen}
        self.matrix.record_step(number + 1, num_steps, scores)

    def of_task(self, trainer: MixingTrainer, task: Task, when: str) -> tuple[float, str | None]:
        """Scores a task; see `tasks.score.score_of`."""
        return score_of(self.score, trainer, task, when)


class AfterSteps(TrainerCallback):
    """Scores before the first step and after some steps, without an effect on the training.

    The state of the global random generators is restored afterwards.

    Args:
        is_due: Whether to score after a number of steps.
        record: Evaluates and stores scores, given the number of steps.
    """

    def __init__(self, is_due: Callable[[int], bool], record: Callable[[int], None]):
        self._is_due, self._record = is_due, record

    def on_train_begin(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        """Scores at the beginning, unless the task goes on from a checkpoint."""
        if state.global_step == 0:
            self._score(0)

    def on_step_end(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        """Scores after a step."""
        if self._is_due(state.global_step):
            self._score(state.global_step)

    def _score(self, num_steps: int) -> None:
        before = RandomState.capture()
        self._record(num_steps)
        before.restore()
