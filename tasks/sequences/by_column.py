"""Tasks by a column of the data, such as a domain, a language or an author, or by time."""

import datetime
import decimal
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from mixer.utils.data_set import DataSet
from mixer.utils.errors import InvalidValueError
from tasks.sequences.derived import number_apart
from tasks.sequences.parts import check_between, check_known, listed, new_task
from tasks.sources.checks import require_column
from tasks.task import Scenario, TaskSequence

_KINDS: dict[str, tuple[type, ...]] = {
    "text": (str,),
    "dates": (datetime.date, np.datetime64),
    "numbers": (int, float, decimal.Decimal, np.number, np.bool_),
}


def by_column(
    train: DataSet,
    evaluation: DataSet,
    column: str,
    *,
    order: Sequence[Any] | None = None,
    scenario: Scenario = "domain",
    apart: bool = False,
) -> TaskSequence:
    """Creates one task per value of a column; every sample is in exactly one task.

    Args:
        train: A Hugging Face data set, or one with an attribute of one value per sample.
        evaluation: Another, with the same column.
        column: Name of the column or attribute.
        order: The values in the order of the tasks; `None` sorts them.
        scenario: `"domain"` if every task has all classes, `"class"` or `"task"` if each has its own.
        apart: Whether classes are numbered anew so that no two tasks share one; see `number_apart`.

    Returns:
        The sequence; tasks are named by their values, with `_` for `/`.

    Raises:
        ValueError: If the column is missing, order does not name each value once, or the scenario does not fit.
    """
    values, evaluated = (
        values.astype(str) if values.dtype.kind == "M" else values  # moments have no names of their own
        for values in (require_column(train, column, "train"), require_column(evaluation, column, "evaluation"))
    )
    check_known(column, values.tolist(), evaluated.tolist())
    found = sorted(set(values.tolist()))
    ordered = found if order is None else listed("by_column: order", order, str(found[:3]))
    if len(ordered) != len(found) or set(ordered) != set(found):
        raise InvalidValueError.about("order", f"must name each value of {column!r} once, {found}, got {ordered}.")
    splits = train, evaluation
    tasks = (
        new_task(name, splits, (values == value, evaluated == value), f"{column} = {value}")
        for name, value in zip(_names(column, ordered), ordered, strict=True)
    )
    return number_apart(TaskSequence(tuple(tasks), "free"), scenario) if apart else TaskSequence(tuple(tasks), scenario)


def _names(column: str, values: Sequence[Any]) -> list[str]:
    """Names tasks by their values, those apart that are equal once they can be the names of streams."""
    plain = [str(value) for value in values]
    names: list[str] = []
    for name in plain:
        safe = (name if name.strip() else f"{column}_empty").replace("/", "_")
        while safe != name and safe in {*names, *plain}:
            safe += "_"
        names.append(safe)
    return names


def by_time(
    train: DataSet,
    evaluation: DataSet,
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
        raise InvalidValueError.about("boundaries", f"or num_tasks must be set, got {boundaries} and {num_tasks}.")
    given = None if boundaries is None else listed("by_time: boundaries", boundaries, "['2023-01-01', '2024-01-01']")
    moments, evaluated_at, starts = read_moments(train, evaluation, column, given)
    if num_tasks is not None:
        check_between("by_time: num_tasks", num_tasks, len(moments), "samples")
        starts = np.sort(moments)[np.arange(1, num_tasks) * len(moments) // num_tasks]
    if np.any(starts[1:] <= starts[:-1]):
        hint = " Too few different moments for so many tasks: lower num_tasks." if boundaries is None else ""
        raise InvalidValueError.about("by_time: boundaries", f"must ascend, got {starts.tolist()}.{hint}")
    periods = np.searchsorted(starts, moments, side="right")
    evaluated = np.searchsorted(starts, evaluated_at, side="right")
    splits = train, evaluation
    tasks = (
        new_task(f"task_{n + 1}", splits, (periods == n, evaluated == n), _describe(column, starts, n))
        for n in range(len(starts) + 1)
    )
    return TaskSequence(tuple(tasks), scenario)


def read_moments(
    train: DataSet, evaluation: DataSet, column: str, boundaries: Sequence[Any] | None
) -> tuple[Any, Any, Any]:
    """Reads the moments of both parts, which can then be compared with each other and with boundaries.

    Dates go with text that is one (ISO 8601), and are compared as dates then, in UTC where zones are named.

    Args:
        train: The data set for training.
        evaluation: That for evaluation.
        column: The column of moments in both.
        boundaries: The moments that they are cut at, if they were given.

    Returns:
        The moments, `[num_samples]` each, and the boundaries.

    Raises:
        ValueError: If the column is missing, kinds do not go together, or text is no date.
    """
    splits = {"train": train, "evaluation": evaluation}
    found: dict[str, Any] = {called: require_column(part, column, called) for called, part in splits.items()}
    if boundaries is not None:
        found["boundaries"] = boundaries
    kinds = {name: _kinds_of(moments) for name, moments in found.items()}
    together = set().union(*kinds.values())
    if len(together) > 1 and together != {"dates", "text"}:
        kinds_by_name = ", ".join(f"{name} has {' and '.join(sorted(own))}" for name, own in kinds.items() if own)
        raise InvalidValueError.about("column", f"{column!r} must be of one kind, but {kinds_by_name}: cast it.")
    if "dates" in together:
        found = {name: _as_dates(moments, name, column) for name, moments in found.items()}
    if boundaries is not None:
        empty = found["train"].dtype if len(boundaries) == 0 else None
        found["boundaries"] = np.asarray(found["boundaries"], dtype=empty)
    return found["train"], found["evaluation"], found.get("boundaries")


def _kinds_of(moments: NDArray[Any] | Sequence[Any]) -> set[str]:
    return {_kind_of(kind) for kind in set(map(type, moments))}


def _kind_of(moment: type) -> str:
    known = (name for name, bases in _KINDS.items() if issubclass(moment, bases))
    return next(known, f"values of type {moment.__name__}")


def _as_dates(moments: NDArray[Any] | Sequence[Any], called: str, column: str) -> NDArray[Any]:
    if isinstance(moments, np.ndarray) and moments.dtype.kind == "M":
        return moments
    try:
        read = pd.to_datetime(pd.Series(list(moments), dtype=object), utc=True, format="ISO8601")
    except ValueError as error:
        raise InvalidValueError.about(
            "column", f"{column!r} must have dates as 2024-01-31, but {called} has {str(error).splitlines()[0]}"
        ) from error
    dates: NDArray[Any] = read.dt.tz_localize(None).to_numpy()
    return dates


def _describe(column: str, starts: NDArray[Any], number: int) -> str:
    named = [re.sub(r"T00:00:00(\.0+)?$", "", str(start)) for start in starts]
    after = f"{named[number - 1]} <= " if number else ""
    before = f" < {named[number]}" if number < len(starts) else ""
    return f"{after}{column}{before}"
