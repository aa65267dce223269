"""Shared by the builders of task sequences: argument checks, and parts of one labelled data set."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from mixer.utils.arrays import BoolArray, Int64Array
from mixer.utils.errors import InvalidValueError
from mixer.utils.ranges import check_count
from tasks.sequences.data_sets import pick
from tasks.sources.checks import require_labels
from tasks.task import Task


def check_between(name: str, value: Any, most: int, of_what: str) -> None:
    """Raises a `ValueError` unless `value` is an integer from 1 to `most`, the number of `of_what`."""
    if not isinstance(value, (int, np.integer)) or not 1 <= value <= most:
        raise InvalidValueError.about(name, f"must be a whole number from 1 to the {most} {of_what}, got {value!r}.")


def check_seed(name: str, seed: Any) -> None:
    """Raises a `ValueError` unless `seed` is an integer of 0 or more."""
    check_count(name, seed, 0, "0 does as well as any other")


def listed(name: str, given: Any, example: str) -> list[Any]:
    """Converts an argument to a list; raises a `ValueError` for a single value, with an `example`."""
    is_one = isinstance(given, (str, bytes, Mapping)) or getattr(given, "ndim", 1) == 0
    if is_one or not isinstance(given, Iterable):
        raise InvalidValueError.about(name, f"must be a list, such as {example}, got {given!r}.")
    return list(given)


def new_task(
    name: str, splits: Sequence[Any], masks: Sequence[BoolArray], description: str, classes: Sequence[int] | None = None
) -> Task:
    """Makes a task of the samples of two data sets, for training and for evaluation, that two masks select."""
    train, evaluation = (pick(part, np.flatnonzero(mask)) for part, mask in zip(splits, masks, strict=True))
    return Task(name, train, evaluation, None if classes is None else tuple(classes), description)


def check_known(what: str, train: Iterable[Any], evaluation: Iterable[Any]) -> None:
    """Refuses evaluation data with values that training data lack.

    Args:
        what: What its values are called.
        train: Those of the training samples.
        evaluation: Those of the others.

    Raises:
        ValueError: If evaluation has values of its own.
    """
    strange = sorted(set(evaluation) - set(train))
    if strange:
        raise InvalidValueError.about("evaluation", f"must have {what} that train has, too, got {strange[:10]}.")


def class_labels(train: Any, evaluation: Any) -> tuple[Int64Array, Int64Array, list[int]]:
    """Reads the labels of both parts.

    Args:
        train: The data set for training.
        evaluation: That for evaluation.

    Returns:
        Their labels, int64 `[num_samples]` each, and the classes, ascending.

    Raises:
        ValueError: If one has no labels, or evaluation has classes that training lacks.
    """
    labels, evaluated = require_labels(train, "train"), require_labels(evaluation, "evaluation")
    check_known("class", labels.tolist(), evaluated.tolist())
    return labels, evaluated, np.unique(labels).tolist()


def in_order(classes: Sequence[int], seed: int | None) -> Int64Array:
    """Returns the classes, int64 `[num_classes]`, shuffled by a seed; `None` keeps the order."""
    given = np.asarray(classes, dtype=np.int64)
    return given if seed is None else np.random.default_rng(seed).permutation(given)


def named(groups: Mapping[str, Sequence[int]] | Iterable[Sequence[int]]) -> dict[str, list[int]]:
    """Names groups of classes.

    Args:
        groups: By name, or one after the other.

    Returns:
        By name; `task_1`, `task_2`, ... where they have none.

    Raises:
        ValueError: If a group is none.
    """
    by_name = groups if isinstance(groups, Mapping) else {f"task_{n}": group for n, group in enumerate(groups, 1)}
    return {str(name): listed(f"groups: that of {name!r}", group, "[0, 1]") for name, group in by_name.items()}


def class_tasks(
    splits: tuple[Any, Any],
    places: tuple[Int64Array, Int64Array],
    groups: Mapping[str, Sequence[int]],
    new_numbers: Mapping[int, int],
    note: str = "",
) -> tuple[Task, ...]:
    """Makes a task of each group of classes, from the training samples' task numbers and the evaluated classes."""
    place, evaluated = places
    return tuple(
        new_task(
            name,
            splits,
            (place == number, np.isin(evaluated, group)),
            f"classes {', '.join(map(str, group))}{note}",
            [new_numbers[label] for label in group],
        )
        for number, (name, group) in enumerate(groups.items())
    )
