"""Scores of a continual run: of all tasks before and after each, and of those seen so far while one is learnt."""

import copy
from collections.abc import Callable, Hashable, Iterable, Mapping
from functools import partial
from typing import Any

import numpy as np
from transformers import TrainerCallback, TrainerState

from mixer import MixingTrainer
from mixer.utils.errors import InvalidValueError
from mixer.utils.random_state import RandomState
from replay.storage.sources import fingerprint
from tasks.continual.continual_checks import check_held_out, check_names
from tasks.metrics.score_matrix import ScoreMatrix
from tasks.score import Score, score_of
from tasks.sequences.data_sets import pick
from tasks.task import Task, TaskSequence

Scored = tuple[float, str | None]  # or why there is no score
_NO_DATA: tuple[dict[str, Any], ...] = ({},)  # of a score that has its own


class Scoring:
    """Scores the tasks of a run, and held-out sets beside them.

    Args:
        score: What a score is.
        sequence: The tasks.
        held_out: Data sets that are no task, by name, or scores that have data of their own.
        score_steps: After how many steps the tasks seen so far are scored, again and again; `None` for never.
        score_samples: Samples of each evaluation set that are scored then; `None` for all.
    """

    def __init__(
        self,
        score: Score,
        sequence: TaskSequence,
        held_out: Mapping[str, Any] | None,
        score_steps: int | None,
        score_samples: int | None = None,
    ):
        self.score, self._sequence = score, sequence
        check_held_out(held_out)
        self._own = {name: given for name, given in (held_out or {}).items() if isinstance(given, Score)}
        datasets = {name: _NO_DATA if name in self._own else given for name, given in (held_out or {}).items()}
        self._held_out = [Task(name, dataset, dataset) for name, dataset in datasets.items()]
        check_names(score, (*sequence.names, *(name for name in datasets if name not in self._own)))
        for name, own in self._own.items():
            check_names(own, [name], f"held_out[{name!r}]")
        self._score_steps = score_steps
        few = {id(task.evaluation): _some(task.evaluation, score_samples) for task in sequence}
        self._scored_at_steps = [_evaluated_on(task, few[id(task.evaluation)]) for task in sequence]
        self.matrix = self.new_matrix()

    @property
    def scores(self) -> list[Score]:
        """The score of the tasks, and those of held-out sets that have their own."""
        return [self.score, *self._own.values()]

    @property
    def fingerprints(self) -> dict[str, str]:
        """Digests of the held-out sets, by name; of a score its metric."""
        digests = {task.name: fingerprint(task.evaluation) for task in self._held_out if task.name not in self._own}
        return digests | {name: own.metric for name, own in self._own.items()}

    def new_matrix(self) -> ScoreMatrix:
        """Returns an empty matrix."""
        names, held_out = self._sequence.names, [task.name for task in self._held_out]
        return ScoreMatrix(names, self.score.higher_is_better, self.score.metric, held_out=held_out)

    def record(self, trainer: MixingTrainer, after: int) -> dict[str, str]:
        """Scores all tasks and held-out sets after a number of tasks; returns why held-out sets have no score."""
        when = f"after {after} tasks"
        scored = self._of_tasks(trainer, self._sequence, when)
        failures = {name: why for name, (_, why) in scored.items() if why is not None}
        self.matrix.record(after, {name: score for name, (score, _) in scored.items()}, failures)
        others = self._of_tasks(trainer, self._held_out, when)
        if others:
            self.matrix.record_held_out(after, {name: score for name, (score, _) in others.items()})
        return {name: why for name, (_, why) in others.items() if why is not None}

    def record_before(self, trainer: MixingTrainer) -> None:
        """Scores all tasks before the first.

        Raises:
            ValueError: If none of them can be scored, or a held-out set cannot.
        """
        if unscored := self.record(trainer, 0):
            raise InvalidValueError.about(
                "held_out", f"could not be scored before the first task: {unscored}. Leave those out.", found=unscored
            )
        reasons = {name: why for (_, name), why in self.matrix.failures.items()}
        if len(reasons) == len(self._sequence):
            raise InvalidValueError.about("score", f"failed on every task before the first: {reasons}.", found=reasons)

    def callback(self, trainer: MixingTrainer, number: int, scores_before: bool) -> TrainerCallback:
        """Returns what scores tasks while one is trained.

        Args:
            trainer: The trainer of the task.
            number: Number of the task, from 0.
            scores_before: Whether all tasks are scored before its first step.
        """
        before = partial(self.record_before, trainer) if scores_before else None
        return AfterSteps(before, self._score_steps, partial(self._record_step, trainer, number))

    def _record_step(self, trainer: MixingTrainer, number: int, num_steps: int) -> None:
        when = f"after {num_steps} steps of {self._sequence[number].name!r}"
        scored = self._of_tasks(trainer, self._scored_at_steps[: number + 1], when)
        self.matrix.record_step(number + 1, num_steps, {name: score for name, (score, _) in scored.items()})

    def _of_tasks(self, trainer: MixingTrainer, tasks: Iterable[Task], when: str) -> dict[str, Scored]:
        """Scores tasks, once those whose scores cannot differ."""
        found: dict[Hashable, Scored] = {}
        scored = {}
        for task in tasks:
            score = self._score_of(task)
            key = (id(score), task.name if score.depends_on is None else score.depends_on(task))
            if key not in found:
                found[key] = self.of_task(trainer, task, when)
            scored[task.name] = found[key]
        return scored

    def _score_of(self, task: Task) -> Score:
        return self._own.get(task.name, self.score)

    def of_task(self, trainer: MixingTrainer, task: Task, when: str) -> Scored:
        """Scores a task; see `tasks.score.score_of`."""
        return score_of(self._score_of(task), trainer, task, when)


def _some(dataset: Any, num_samples: int | None) -> Any:
    """Draws samples of a data set, always the same."""
    if num_samples is None or num_samples >= len(dataset):
        return dataset
    return pick(dataset, np.sort(np.random.default_rng(0).permutation(len(dataset))[:num_samples]))


def _evaluated_on(task: Task, dataset: Any) -> Task:
    other = copy.copy(task)
    object.__setattr__(other, "evaluation", dataset)  # which need not have each class
    return other


class AfterSteps(TrainerCallback):
    """Scores before the first step and after some steps, without an effect on the training.

    The state of the global random generators is restored afterwards.

    Args:
        before: What scores before the first step alone, if anything does.
        every: After how many steps the tasks seen so far are scored; `None` for never.
        record: Scores them after a number of steps.
    """

    def __init__(self, before: Callable[[], None] | None, every: int | None, record: Callable[[int], None]):
        self._before, self._every, self._record = before, every, record

    def on_train_begin(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        """Scores at the beginning, unless the task goes on from a checkpoint."""
        if state.global_step == 0:
            _without_effect(self._before)
            self.on_step_end(args, state, control)

    def on_step_end(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        """Scores after a step."""
        if self._every is not None and state.global_step % self._every == 0:
            _without_effect(partial(self._record, state.global_step))


def _without_effect(record: Callable[[], None] | None) -> None:
    if record is not None:
        before = RandomState.capture()
        record()
        before.restore()
