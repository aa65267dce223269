"""Tasks of a few classes each, apart (Zenke et al. 2017, Hsu et al. 2018) or blurred (blurry-M, Bang et al. 2021)."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from mixer.utils.arrays import Int64Array
from tasks.sequences.data_sets import relabel
from tasks.sequences.parts import check_between, check_known, check_seed, listed, new_task
from tasks.sources.checks import require_labels
from tasks.task import Scenario, Task, TaskSequence

Groups = Mapping[str, Sequence[int]] | Sequence[Sequence[int]]


def by_class(
    train: Any,
    evaluation: Any,
    classes_per_task: int | None = None,
    *,
    groups: Groups | None = None,
    seed: int | None = None,
    scenario: Scenario = "class",
) -> TaskSequence:
    """Splits the classes into tasks; every sample is in exactly one task.

    Args:
        train: A labelled data set.
        evaluation: Another, of the same classes.
        classes_per_task: Number of classes of a task; the last takes what is left.
        groups: Or the classes of each task, by name too: `{"animals": [2, 3], "cars": [0, 1]}`.
        seed: Seed of the order of classes; `None` goes by their numbers. Not with `groups`.
        scenario: `"class"` and `"task"` keep the labels; `"domain"` numbers those of each task 0, 1, ... in order.

    Returns:
        The sequence.

    Raises:
        ValueError: If data have no labels, groups are not a partition of the classes, or the scenario does not fit.
    """
    labels, evaluated, classes = _class_labels(train, evaluation)
    partition = _partition(classes, classes_per_task, groups, seed)
    new_numbers = {label: label for label in classes}
    if scenario == "domain":
        new_numbers = {label: number for group in partition.values() for number, label in enumerate(group)}
        train, evaluation = relabel(train, new_numbers), relabel(evaluation, new_numbers)
    place = np.zeros(len(labels), dtype=np.int64)
    for number, group in enumerate(partition.values()):
        place[np.isin(labels, group)] = number
    return TaskSequence(_tasks((train, evaluation), (place, evaluated), partition, new_numbers), scenario)


def _tasks(
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


def _partition(
    classes: list[int], classes_per_task: int | None, groups: Groups | None, seed: int | None
) -> dict[str, list[int]]:
    if (classes_per_task is None) == (groups is None):
        raise ValueError(
            f"by_class: give classes_per_task or groups, one of them, got {classes_per_task} and {groups}."
        )
    if classes_per_task is not None:
        check_between("by_class: classes_per_task", classes_per_task, len(classes), "classes there are")
        if seed is not None:
            check_seed("by_class: seed", seed)
        ordered = _in_order(classes, seed).tolist()
        starts = range(0, len(ordered), classes_per_task)
        return _named(ordered[start : start + classes_per_task] for start in starts)
    if seed is not None:
        raise ValueError(f"by_class: groups have an order already; leave out seed={seed}.")
    example = "[[0, 1], [2, 3]]"
    found = _named(groups if isinstance(groups, Mapping) else listed("by_class: groups", groups, example))
    labels = [(name, label) for name, group in found.items() for label in group]
    for name, label in labels:
        if not isinstance(label, (int, np.integer)):
            raise ValueError(
                f"by_class: groups must hold classes, which are whole numbers, as {example} does, got {label!r} in "
                f"{name!r}."
            )
    _check_partition(classes, [label for _, label in labels])
    return found


def _check_partition(classes: list[int], given: list[int]) -> None:
    faults = {
        "name classes without samples": sorted(set(given) - set(classes)),
        "leave out the classes": sorted(set(classes) - set(given)),
        "name more than once": sorted({label for label in given if given.count(label) > 1}),
    }
    for fault, found in faults.items():
        if found:
            raise ValueError(
                f"by_class: groups {fault} {found}. Each class of the data belongs in one group; samples that no task "
                "shall have are left out of the data beforehand: tasks.sequences.pick(data, indices)."
            )


def blurry(train: Any, evaluation: Any, num_tasks: int, overlap: float, seed: int) -> TaskSequence:
    """Gives each task some classes, of which a share is spread evenly over the other tasks.

    Every training sample is in exactly one task. A task is evaluated on its own classes alone.

    Args:
        train: A labelled data set.
        evaluation: Another, of the same classes.
        num_tasks: Number of tasks.
        overlap: Share of a class's training samples that are in other tasks, at least 0 and below 1.
        seed: Seed of the order of classes and of what is spread where.

    Returns:
        The sequence, boundary-free.

    Raises:
        ValueError: If data have no labels, there are more tasks than classes, or overlap is outside its range.
    """
    check_seed("blurry: seed", seed)
    if not isinstance(overlap, (int, float, np.number)) or not 0.0 <= overlap < 1.0:
        raise ValueError(f"blurry: overlap must be a share, at least 0 and below 1, got {overlap!r}.")
    labels, evaluated, classes = _class_labels(train, evaluation)
    check_between("blurry: num_tasks", num_tasks, len(classes), "classes there are")
    groups = _named(part.tolist() for part in np.array_split(_in_order(classes, seed), num_tasks))
    generator = np.random.default_rng((seed, 1))
    place = np.empty(len(labels), dtype=np.int64)
    for number, group in enumerate(groups.values()):
        for label in group:
            own = np.flatnonzero(labels == label)
            place[own] = _spread(len(own), number, num_tasks, overlap, generator)
    note, numbers = f", {overlap:g} of them in other tasks", {label: label for label in classes}
    return TaskSequence(_tasks((train, evaluation), (place, evaluated), groups, numbers, note), "free")


def _spread(count: int, own: int, num_tasks: int, overlap: float, generator: np.random.Generator) -> Int64Array:
    """Gives the task of each sample of a class."""
    places = np.full(count, own)
    others = generator.permutation(np.delete(np.arange(num_tasks), own))
    num_spread = min(round(count * overlap), count - 1) if len(others) else 0  # the task itself keeps one
    places[:num_spread] = np.resize(others, num_spread)
    return generator.permutation(places)


def _class_labels(train: Any, evaluation: Any) -> tuple[Int64Array, Int64Array, list[int]]:
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


def _in_order(classes: Sequence[int], seed: int | None) -> Int64Array:
    """Returns the classes, int64 `[num_classes]`, shuffled by a seed; `None` keeps the order."""
    given = np.asarray(classes, dtype=np.int64)
    return given if seed is None else np.random.default_rng(seed).permutation(given)


def _named(groups: Mapping[str, Sequence[int]] | Iterable[Sequence[int]]) -> dict[str, list[int]]:
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
