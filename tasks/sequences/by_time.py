"""Tasks by time: what comes first is learnt first."""

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tasks.sequences.arguments import check_between, listed
from tasks.sequences.moments import read_moments
from tasks.sequences.parts import pick_where
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
        column: The moments: numbers, dates, or text that sorts by time (ISO 8601); of one kind
            everywhere, or dates and text.
        boundaries: The first moment of every task but the first, ascending.
        num_tasks: Or the number of tasks, of about as many training samples each.
        scenario: `"free"`, or another if the periods' classes fit it.

    Returns:
        The sequence.

    Raises:
        ValueError: If the column is missing, kinds of moments do not go together, boundaries do not ascend or a period
            is empty.
    """
    if (boundaries is None) == (num_tasks is None):
        raise ValueError(f"by_time: give boundaries or num_tasks, one of them, got {boundaries} and {num_tasks}.")
    given = None if boundaries is None else listed("by_time: boundaries", boundaries, "['2023-01-01', '2024-01-01']")
    moments, evaluated_at, cuts = read_moments(train, evaluation, column, given)
    starts = _even_starts(moments, num_tasks) if cuts is None else cuts
    if np.any(starts[1:] <= starts[:-1]):
        hint = " Too few different moments for so many tasks: lower num_tasks." if boundaries is None else ""
        raise ValueError(f"by_time: boundaries must ascend, got {starts.tolist()}.{hint}")
    periods = np.searchsorted(starts, moments, side="right")
    evaluated = np.searchsorted(starts, evaluated_at, side="right")
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


def _even_starts(moments: NDArray[Any], num_tasks: Any) -> NDArray[Any]:
    check_between("by_time: num_tasks", num_tasks, len(moments), "samples")
    cuts = np.arange(1, num_tasks) * len(moments) // num_tasks
    starts: NDArray[Any] = np.sort(moments)[cuts]
    return starts


def _describe(column: str, starts: NDArray[Any], number: int) -> str:
    named = [re.sub(r"T00:00:00(\.0+)?$", "", str(start)) for start in starts]
    after = f"{named[number - 1]} <= " if number else ""
    before = f" < {named[number]}" if number < len(starts) else ""
    return f"{after}{column}{before}"
