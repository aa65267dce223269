"""Scores of a continual run: of all tasks before and after each, and of those seen so far while one is learnt."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from transformers import TrainerCallback, TrainerState

from mixer import MixingTrainer
from mixer.utils.random_state import RandomState
from replay.storage.sources import fingerprint
from tasks.continual.continual_checks import check_held_out, check_names
from tasks.metrics.score_matrix import ScoreMatrix
from tasks.score import Score, score_of
from tasks.task import Task, TaskSequence

_BETA = 10  # of the paper
Record = tuple[Callable[[int], bool], Callable[[int], None]]


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
        check_held_out(held_out)
        self._held_out = [Task(name, dataset, dataset) for name, dataset in (held_out or {}).items()]
        check_names(score, (*sequence.names, *(task.name for task in self._held_out)))
        self._curve_steps, self._score_steps = curve_steps, score_steps
        self.matrix = self.new_matrix()

    @property
    def fingerprints(self) -> dict[str, str]:
        """Digests of the held-out sets, by name."""
        return {task.name: fingerprint(task.evaluation) for task in self._held_out}

    def new_matrix(self) -> ScoreMatrix:
        """Returns an empty matrix."""
        beta = _BETA if self._curve_steps is None else self._curve_steps
        names, held_out = self._sequence.names, [task.name for task in self._held_out]
        return ScoreMatrix(names, self.score.higher_is_better, self.score.metric, beta, held_out=held_out)

    def record(self, trainer: MixingTrainer, after: int) -> dict[str, str]:
        """Scores all tasks and held-out sets after a number of tasks; returns why held-out sets have no score."""
        when = f"after {after} tasks"
        scored = {task.name: self.of_task(trainer, task, when) for task in self._sequence}
        failures = {name: why for name, (_, why) in scored.items() if why is not None}
        self.matrix.record(after, {name: score for name, (score, _) in scored.items()}, failures)
        others = {task.name: self.of_task(trainer, task, when) for task in self._held_out}
        if others:
            self.matrix.record_held_out(after, {name: score for name, (score, _) in others.items()})
        return {name: why for name, (_, why) in others.items() if why is not None}

    def record_before(self, trainer: MixingTrainer) -> None:
        """Scores all tasks before the first.

        Raises:
            ValueError: If none of them can be scored, or a held-out set cannot.
        """
        if unscored := self.record(trainer, 0):
            raise ValueError(
                f"held_out: sets could not be scored before the first task, and never will be: {unscored}. Give sets "
                "whose samples are as those of the tasks, or leave them out."
            )
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
        found: list[Record] = []
        if scores_before:
            found.append((lambda _: False, lambda _: self.record_before(trainer)))
        if curve is not None:
            found.append((lambda step: step <= curve, partial(self._record_curve, trainer, number)))
        if every is not None:
            found.append((lambda step: step % every == 0, partial(self._record_step, trainer, number)))
        return [AfterSteps(found)] if found else []

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
        records: For each kind of score, whether it is due after a number of steps, and what evaluates and stores it.
    """

    def __init__(self, records: Sequence[Record]):
        self._records = records

    def on_train_begin(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        """Scores at the beginning, unless the task goes on from a checkpoint."""
        if state.global_step == 0:
            for _, record in self._records:
                _without_effect(record, 0)

    def on_step_end(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        """Scores after a step."""
        for is_due, record in self._records:
            if is_due(state.global_step):
                _without_effect(record, state.global_step)


def _without_effect(record: Callable[[int], None], num_steps: int) -> None:
    before = RandomState.capture()
    record(num_steps)
    before.restore()
