"""The score matrix of a continual run: the score on every task, before the first task and after each one."""

from collections.abc import Mapping, Sequence
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from mixer.utils.arrays import FloatArray
from mixer.utils.errors import InvalidValueError
from mixer.utils.files import other_version, write_json
from mixer.utils.validation import DAMAGE, load_json

Point = tuple[int, int]  # number of the task being trained, from 1, and its step


class Course:
    """Scores on the tasks seen so far after every few steps.

    Args:
        task_names: Names of the tasks, in order.
        higher_is_better: Whether a higher score is a better one.
    """

    def __init__(self, task_names: tuple[str, ...], higher_is_better: bool = True):
        self._names, self._sign = task_names, 1.0 if higher_is_better else -1.0
        self._points: dict[Point, dict[str, float]] = {}

    def __len__(self) -> int:
        return len(self._points)

    def record(self, task: int, step: int, scores: Mapping[str, float]) -> None:
        """Sets the scores after a step of a task; those that were there are replaced.

        Args:
            task: Number of the task, from 1.
            step: Number of steps of this task.
            scores: Score by name of the task; NaN where an evaluation failed.
        """
        self._points[task, step] = dict(scores)

    def truncate(self, last: Point) -> None:
        """Forgets what came after a step of a task."""
        self._points = {point: scores for point, scores in self._points.items() if point <= last}

    def to_pandas(self) -> pd.DataFrame:
        """Returns one row per evaluation: index `task` and `step`, a column per task, NaN for those still to come."""
        index = pd.MultiIndex.from_tuples(sorted(self._points), names=["task", "step"])
        rows = [self._points[point] for point in sorted(self._points)]
        return pd.DataFrame(rows, index=index, columns=[*self._names], dtype=float)

    def average_anytime(self, after: int) -> float:
        """AAA: the mean over evaluations of the mean score on the tasks seen by then (Caccia et al. 2022, 2104.05025).

        Args:
            after: Number of the last task to include.
        """
        rows = [[scores.get(name, np.nan) for name in self._names[:task]] for task, scores in self._until(after)]
        return float(np.mean([np.mean(row) for row in rows])) if rows else float("nan")

    def stability_gap(self, after: int, at_end: Mapping[str, float]) -> float:
        """1/(T-1) Σ_{j<T} (R[j, j] - min over later evaluations of j): the deepest fall of a task that was learnt.

        The mean of these minima is min-ACC of De Lange et al. 2023 (2205.13452).

        Args:
            after: Number of the last task to include.
            at_end: `R[j, j]` by name: the score on each task right after its own training.
        """
        gaps = []
        for number, name in enumerate(self._names[: after - 1], start=1):
            later = [scores.get(name, np.nan) for task, scores in self._until(after) if task > number]
            gaps.append(self._sign * at_end[name] - np.min(self._sign * np.array(later)) if later else np.nan)
        return float(np.mean(gaps)) if gaps else float("nan")

    def _until(self, after: int) -> list[tuple[int, dict[str, float]]]:
        return [(task, self._points[task, step]) for task, step in sorted(self._points) if task <= after]

    def state(self) -> dict[str, Any]:
        """Returns the scores as plain data, NaN as text."""
        return {
            f"{task} {step}": {name: score if np.isfinite(score) else str(score) for name, score in scores.items()}
            for (task, step), scores in self._points.items()
        }

    def load_state(self, state: Mapping[str, Mapping[str, float | str]]) -> None:
        """Restores the result of `state`."""
        for point, scores in state.items():
            task, step = point.split()
            self.record(int(task), int(step), {name: float(score) for name, score in scores.items()})


FORMAT_VERSION = 1
SCORES_FILE = "scores.json"
NOT_RECORDED = "not recorded"
_NOT_A_NUMBER = "the evaluation gave NaN"


class ScoreMatrix:
    """R [num_tasks + 1, num_tasks]: R[i, j] is the score on task j after training on task i, both from 1.

    Row 0 holds the scores b_j of the model before the first task; in arrays, column j - 1 is task j. Beside it stand
    scores while tasks are learnt (`course`) and scores on held-out sets that are no task, at the same times as R, which
    enter no metric.

    Args:
        task_names: Names of the tasks in the order of training.
        higher_is_better: Whether a higher score is a better one: true of accuracies, false of losses.
        metric: What a score is.
        path: JSON file that is written anew, whole or not at all, at each change; `None` keeps all in memory, as on
            ranks that do not write.
        held_out: Names of the held-out sets.

    Raises:
        ValueError: If there is no task, or two have the same name.
    """

    def __init__(
        self,
        task_names: Sequence[str],
        higher_is_better: bool = True,
        metric: str = "accuracy",
        path: str | Path | None = None,
        held_out: Sequence[str] = (),
    ):
        self.task_names, self.held_out_names = tuple(task_names), tuple(held_out)
        if clash := [name for name in held_out if name in self.task_names]:
            raise InvalidValueError.about("held_out", f"has the names of tasks, {clash}: give those sets other names.")
        are_names = all(isinstance(name, str) and _is_text(name) for name in self.task_names)
        are_distinct = len(set(self.task_names)) == len(self.task_names)
        if isinstance(task_names, str) or not self.task_names or not (are_names and are_distinct):
            raise InvalidValueError.about("task_names", f"must be different names, at least one, got {task_names!r}.")
        self.higher_is_better, self.metric = higher_is_better, metric
        self.path = None if path is None else Path(path)
        self.failures: dict[tuple[int, str], str] = {}
        self._rows: dict[int, list[float]] = {}
        self._held_out: dict[int, dict[str, float]] = {}  # by row
        self.course = Course(self.task_names, higher_is_better)
        self._written: Mapping[str, Any] = {}  # the file's content

    def __str__(self) -> str:
        table = pd.concat([self.to_pandas(), self.held_out()], axis=1).loc[self.recorded]
        table.index = pd.Index(["before", *(f"after {name}" for name in self.task_names)]).take(self.recorded)
        return f"{self.metric} on each task\n{table.round(4).to_string(na_rep='-')}"

    @classmethod
    def from_file(cls, path: str | Path) -> "ScoreMatrix":
        """Reads a matrix, which goes on being written to the same file.

        Args:
            path: The file.

        Returns:
            The matrix, every score to the bit.

        Raises:
            ValueError: If the file is missing or holds no score matrix.
        """
        try:
            content = load_json(Path(path))
            if content["format"] != FORMAT_VERSION:
                raise ValueError(other_version("it", content["format"], FORMAT_VERSION))
            held_out = content.get("held_out", {})
            names = [*next(iter(held_out.values()), {})]
            matrix = cls(content["tasks"], content["higher_is_better"], content["metric"], held_out=names)
            for after, row in content["scores"].items():
                scores = dict(zip(matrix.task_names, map(float, row), strict=True))
                matrix.record(int(after), scores, content["failures"].get(after, {}))
            for after, scores in held_out.items():
                matrix._held_out[int(after)] = {name: float(score) for name, score in scores.items()}
            matrix.course.load_state(content.get("course", {}))
        except (OSError, ValueError, *DAMAGE) as error:
            raise InvalidValueError.about(Path(path).name, f"holds no score matrix: {path} ({error!r}).") from None
        matrix.path = Path(path)
        return matrix

    @property
    def num_tasks(self) -> int:
        """Number of tasks, T."""
        return len(self.task_names)

    @property
    def recorded(self) -> list[int]:
        """Numbers of the rows that were recorded, in ascending order."""
        return sorted(self._rows)

    @property
    def last_task(self) -> int:
        """Number of the last task that was trained on, 1 at least: metrics end with it while a run goes on."""
        return max([1, *self._rows])

    @property
    def scores(self) -> FloatArray:
        """R, float64 `[num_tasks + 1, num_tasks]`, read-only (`record` sets a row): NaN where there is no score."""
        empty = [float("nan")] * self.num_tasks
        scores = np.array([self._rows.get(after, empty) for after in range(self.num_tasks + 1)])
        scores.flags.writeable = False  # a write to what is made anew each time would be lost
        return scores

    def record(self, after: int, scores: Mapping[str, float], failures: Mapping[str, str] | None = None) -> None:
        """Sets a row; one that was there is replaced.

        Args:
            after: Number of the task that was last trained on, 0 before the first.
            scores: Score by name of the task; NaN, or no entry, where an evaluation failed or was not made.
            failures: By name of the task, why it has no score.

        Raises:
            ValueError: If there is no such row or task, a score is no number, or a task with a score failed.
        """
        _check_within("after", after, 0, self.num_tasks)
        failures = failures or {}
        if unknown := [name for name in (*scores, *failures) if name not in self.task_names]:
            raise InvalidValueError.about("scores", f"must be of the tasks {self.task_names}, got {unknown}.")
        row = [_number(name, scores.get(name, float("nan"))) for name in self.task_names]
        missing = [name for name, score in zip(self.task_names, row, strict=True) if np.isnan(score)]
        if scored := {name: scores[name] for name in failures if name not in missing}:
            raise InvalidValueError.about("failures", f"must name tasks without a score, but some have one: {scored}.")
        why_not = {name: _NOT_A_NUMBER if name in scores else NOT_RECORDED for name in missing} | dict(failures)
        self._rows[after] = row
        self.failures = {key: why for key, why in self.failures.items() if key[0] != after}
        self.failures |= {(after, name): why for name, why in why_not.items()}
        self.write()

    def record_held_out(self, after: int, scores: Mapping[str, float]) -> None:
        """Sets the scores on the held-out sets in a row; NaN where an evaluation failed."""
        _check_within("after", after, 0, self.num_tasks)
        self._held_out[after] = {name: _number(name, scores.get(name, float("nan"))) for name in self.held_out_names}
        self.write()

    def held_out(self) -> pd.DataFrame:
        """Returns the scores on the held-out sets: rows as those of `to_pandas`, one column per set."""
        index = pd.RangeIndex(self.num_tasks + 1, name="after")
        return pd.DataFrame.from_dict(self._held_out, orient="index", columns=[*self.held_out_names]).reindex(index)

    def record_step(self, task: int, step: int, scores: Mapping[str, float]) -> None:
        """Sets the scores on the tasks seen so far after a step of a task; see `Course.record`."""
        _check_within("task", task, 1, self.num_tasks)
        self.course.record(task, step, scores)
        self.write()

    def truncate(self, after: int, num_batches: int | None = None) -> None:
        """Forgets what came later than where a run is resumed.

        Args:
            after: Number of the last task that was finished there: its row is the last to stay.
            num_batches: Batches of the next task that were done: its scores stay up to there; `None` for none of it.

        Raises:
            ValueError: If there is no such row.
        """
        _check_within("after", after, 0, self.num_tasks)
        last = (after + 1, -1 if num_batches is None else num_batches)
        self._rows = {row: scores for row, scores in self._rows.items() if row <= after}
        self._held_out = {row: scores for row, scores in self._held_out.items() if row <= after}
        self.course.truncate(last)
        self.failures = {key: why for key, why in self.failures.items() if key[0] <= after}
        self.write()

    def to_pandas(self) -> pd.DataFrame:
        """Returns the matrix as a table.

        Returns:
            One row per number of tasks trained on (the index `after`, from 0) and one column per task.
        """
        index = pd.RangeIndex(self.num_tasks + 1, name="after")
        return pd.DataFrame(self.scores, index=index, columns=list(self.task_names), copy=True)

    def write(self) -> None:
        """Writes the file, if there is one."""
        if self.path is None:
            return
        content = {
            "format": FORMAT_VERSION,
            "metric": self.metric,
            "higher_is_better": self.higher_is_better,
            "tasks": self.task_names,
            "scores": {after: [_encoded(score) for score in row] for after, row in self._rows.items()},
            "failures": _nested(self.failures),
            "held_out": {
                row: {name: _encoded(score) for name, score in scores.items()} for row, scores in self._held_out.items()
            },
            "course": self.course.state(),
        }
        if content != self._written:
            write_json(self.path, content)
            self._written = content


def _is_text(name: str) -> bool:
    """Whether a name can be written: half of a character, as JSON may have it, cannot."""
    return not any("\ud800" <= character <= "\udfff" for character in name)


def _check_within(name: str, number: int, least: int, most: int) -> None:
    if not least <= number <= most:
        raise InvalidValueError.about(name, f"must be from {least} to {most}, but is {number}.")


def _number(name: str, score: object) -> float:
    if not isinstance(score, Real):
        raise InvalidValueError(f"the score of {name!r} must be a number, but is {score!r}.", option=name)
    return float(score)


def _nested(flat: Mapping[tuple[int, Any], Any]) -> dict[int, dict[Any, Any]]:
    """Groups entries by the first part of their key."""
    nested: dict[int, dict[Any, Any]] = {}
    for (outer, inner), value in flat.items():
        nested.setdefault(outer, {})[inner] = value
    return nested


def _encoded(score: float) -> float | str:
    return score if np.isfinite(score) else str(score)  # JSON has neither NaN nor infinity
