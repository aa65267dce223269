"""One task per given data set."""

from collections.abc import Mapping
from typing import Any

from tasks.task import Scenario, Task, TaskSequence


def from_data_sets(data_sets: Mapping[str, tuple[Any, Any] | list[Any]], scenario: Scenario) -> TaskSequence:
    """Makes one task of each pair of data sets.

    Args:
        data_sets: For each task, by its name, what is trained on and what is evaluated on.
        scenario: See `TaskSequence`.

    Returns:
        The sequence, in the given order.

    Raises:
        ValueError: If a data set is empty, or classes do not fit the scenario.
        TypeError: If something is no pair of data sets.
    """
    if not isinstance(data_sets, Mapping):
        raise TypeError(
            "from_data_sets: data_sets must give for each task, by its name, a pair of data sets, "
            f"{{'first': (train, evaluation)}}, got a {type(data_sets).__name__}."
        )
    for name, pair in data_sets.items():
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise TypeError(f"from_data_sets {name!r}: give a pair (train, evaluation), got {type(pair).__name__}.")
    return TaskSequence(tuple(Task(name, *pair) for name, pair in data_sets.items()), scenario)
