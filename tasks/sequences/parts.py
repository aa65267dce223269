"""Tasks made of parts of one labelled data set."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tasks.sequences.picked import pick
from tasks.sources.labels import require_labels

Int64Array = NDArray[np.int64]


def pick_where(dataset: Any, is_picked: NDArray[np.bool_]) -> Any:
    """Picks samples in their order.

    Args:
        dataset: A map-style data set.
        is_picked: bool `[num_samples]`.

    Returns:
        See `tasks.sequences.picked.pick`.
    """
    return pick(dataset, np.flatnonzero(is_picked))


def pick_some(dataset: Any, num_samples: int | None, seed: Sequence[int]) -> Any:
    """Draws samples without replacement.

    Args:
        dataset: A map-style data set.
        num_samples: How many; `None` for all, in order.
        seed: What makes the draw.

    Returns:
        The data set, or a part of it.

    Raises:
        ValueError: If there are fewer.
    """
    if num_samples is None:
        return dataset
    if not 1 <= num_samples <= len(dataset):
        raise ValueError(f"samples_per_task must be between 1 and the {len(dataset)} there are, got {num_samples}.")
    return pick(dataset, np.random.default_rng(seed).choice(len(dataset), num_samples, replace=False))


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


def check_known(what: str, train: Iterable[Any], evaluation: Iterable[Any]) -> None:
    """Makes sure that whatever is evaluated on is of a kind that is trained on.

    Args:
        what: What its values are called.
        train: Those of the training samples.
        evaluation: Those of the others.

    Raises:
        ValueError: If evaluation has values of its own.
    """
    strange = sorted(set(evaluation) - set(train))
    if strange:
        raise ValueError(
            f"evaluation has samples of {what} {strange[:10]}, of which train has none: they would be in no task. "
            "Leave them out of evaluation, or add some to train."
        )


def groups_of(classes: Sequence[int], num_tasks: int, seed: int | None) -> dict[str, list[int]]:
    """Shares classes out over tasks, as evenly as can be.

    Args:
        classes: The classes.
        num_tasks: Number of tasks.
        seed: Seed of the order of classes; `None` leaves it.

    Returns:
        The classes of each task, by its name.

    Raises:
        ValueError: If there are more tasks than classes.
    """
    if not 1 <= num_tasks <= len(classes):
        raise ValueError(f"num_tasks must be between 1 and the {len(classes)} classes there are, got {num_tasks}.")
    return named(part.tolist() for part in np.array_split(in_order(classes, seed), num_tasks))


def in_order(classes: Sequence[int], seed: int | None) -> Int64Array:
    """Brings classes into an order.

    Args:
        classes: The classes.
        seed: Seed of the order; `None` leaves it.

    Returns:
        int64 `[num_classes]`.
    """
    given = np.asarray(classes, dtype=np.int64)
    return given if seed is None else np.random.default_rng(seed).permutation(given)


def named(groups: Mapping[str, Sequence[int]] | Iterable[Sequence[int]]) -> dict[str, list[int]]:
    """Names groups of classes.

    Args:
        groups: By name, or one after the other.

    Returns:
        By name; `task_1`, `task_2`, ... where they have none.
    """
    if isinstance(groups, Mapping):
        return {str(name): list(group) for name, group in groups.items()}
    return {f"task_{number}": list(group) for number, group in enumerate(groups, 1)}
