"""Tasks by time: what comes first is learnt first."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tasks.sequences.parts import pick_where
from tasks.sources.labels import require_column
from tasks.task import Scenario, Task, TaskSequence


def by_time(
    train: Any,
    evaluation: Any,
    column: str,
    *,
    boundaries: Sequence[Any] | None = None,
    num_tasks: int | None = None,
    scenario: Scenario = "free",
) -> TaskSequence:
    """Cuts data into periods; every sample is in exactly one task, moments that are equal in the same.

    Args:
        train: A Hugging Face data set, or one with an attribute of one moment a sample.
        evaluation: Another, with the same column; it is cut at the same moments.
        column: The moments: numbers, dates, or text that sorts by time (ISO 8601).
        boundaries: The first moment of every task but the first, ascending.
        num_tasks: Or the number of tasks, of about as many training samples each.
        scenario: `"free"`, or another if the periods' classes fit it.

    Returns:
        The sequence.

    Raises:
        ValueError: If the column is missing, boundaries do not ascend or a period is empty.
    """
    if (boundaries is None) == (num_tasks is None):
        raise ValueError(f"by_time: give boundaries or num_tasks, one of them, got {boundaries} and {num_tasks}.")
    moments = require_column(train, column, "train")
    starts = _even_starts(moments, num_tasks) if boundaries is None else _as_moments(boundaries, moments)
    if np.any(starts[1:] <= starts[:-1]):
        hint = " Too few different moments for so many tasks: lower num_tasks." if boundaries is None else ""
        raise ValueError(f"by_time: boundaries must ascend, got {starts.tolist()}.{hint}")
    periods = np.searchsorted(starts, moments, side="right")
    evaluated = np.searchsorted(starts, require_column(evaluation, column, "evaluation"), side="right")
    tasks = (
        Task(
            f"task_{number + 1}",
            pick_where(train, periods == number),
            pick_where(evaluation, evaluated == number),
            description=_describe(column, starts, number),
        )
        for number in range(len(starts) + 1)
    )
    return TaskSequence(tuple(tasks), scenario)


def _even_starts(moments: NDArray[Any], num_tasks: int | None) -> NDArray[Any]:
    if num_tasks is None or not 1 <= num_tasks <= len(moments):
        raise ValueError(f"by_time: num_tasks must be between 1 and the {len(moments)} samples, got {num_tasks}.")
    cuts = np.arange(1, num_tasks) * len(moments) // num_tasks
    starts: NDArray[Any] = np.sort(moments)[cuts]
    return starts


def _as_moments(boundaries: Sequence[Any], moments: NDArray[Any]) -> NDArray[Any]:
    is_date = moments.dtype.kind == "M"  # dates may be given as text
    return np.asarray(boundaries, dtype=moments.dtype if is_date or len(boundaries) == 0 else None)


def _describe(column: str, starts: NDArray[Any], number: int) -> str:
    after = f"{starts[number - 1]} <= " if number else ""
    before = f" < {starts[number]}" if number < len(starts) else ""
    return f"{after}{column}{before}"
