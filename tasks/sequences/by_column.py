"""Tasks by a column of the data, such as a domain, a language or an author."""

from collections.abc import Sequence
from typing import Any

from tasks.sequences.number_apart import number_apart
from tasks.sequences.parts import check_known, listed, new_task
from tasks.sources.labels import require_column
from tasks.task import Scenario, TaskSequence


def by_column(
    train: Any,
    evaluation: Any,
    column: str,
    *,
    order: Sequence[Any] | None = None,
    scenario: Scenario = "domain",
    apart: bool = False,
) -> TaskSequence:
    """Creates one task per value of a column; every sample is in exactly one task.

    Args:
        train: A Hugging Face data set, or one with an attribute of one value a sample.
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
        raise ValueError(f"by_column: order must name each value of {column!r} once, {found}, got {ordered}.")
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


by_domain = by_column
