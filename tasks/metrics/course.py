"""Scores on all tasks while tasks are learnt: what their ends alone do not show."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

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
