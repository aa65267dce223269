"""Tasks of a few classes each, no two with one in common (Zenke et al. 2017, Hsu et al. 2018)."""

from collections.abc import Mapping, Sequence

import numpy as np

from mixer.utils.data_set import DataSet
from mixer.utils.errors import InvalidValueError
from tasks.sequences.data_sets import relabel
from tasks.sequences.parts import check_between, check_seed, class_labels, class_tasks, in_order, listed, named
from tasks.task import Scenario, TaskSequence

Groups = Mapping[str, Sequence[int]] | Sequence[Sequence[int]]


def by_class(
    train: DataSet,
    evaluation: DataSet,
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
    labels, evaluated, classes = class_labels(train, evaluation)
    partition = _partition(classes, classes_per_task, groups, seed)
    new_numbers = {label: label for label in classes}
    if scenario == "domain":
        new_numbers = {label: number for group in partition.values() for number, label in enumerate(group)}
        train, evaluation = relabel(train, new_numbers), relabel(evaluation, new_numbers)
    place = np.zeros(len(labels), dtype=np.int64)
    for number, group in enumerate(partition.values()):
        place[np.isin(labels, group)] = number
    return TaskSequence(class_tasks((train, evaluation), (place, evaluated), partition, new_numbers), scenario)


def _partition(
    classes: list[int], classes_per_task: int | None, groups: Groups | None, seed: int | None
) -> dict[str, list[int]]:
    if (classes_per_task is None) == (groups is None):
        raise InvalidValueError.about(
            "groups", f"or classes_per_task must be set, got {groups} and {classes_per_task}."
        )
    if classes_per_task is not None:
        check_between("by_class: classes_per_task", classes_per_task, len(classes), "classes there are")
        if seed is not None:
            check_seed("by_class: seed", seed)
        ordered = in_order(classes, seed).tolist()
        starts = range(0, len(ordered), classes_per_task)
        return named(ordered[start : start + classes_per_task] for start in starts)
    if seed is not None:
        raise InvalidValueError.about("by_class: groups", f"have an order already; leave out seed={seed}.")
    example = "[[0, 1], [2, 3]]"
    found = named(groups if isinstance(groups, Mapping) else listed("by_class: groups", groups, example))
    labels = [(name, label) for name, group in found.items() for label in group]
    for name, label in labels:
        if not isinstance(label, (int, np.integer)):
            raise InvalidValueError.about("groups", f"must hold classes, as {example} does, got {label!r} in {name!r}.")
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
            raise InvalidValueError.about(
                "groups",
                f"{fault} {found}: each class belongs in one; leave samples out by pick(data, indices).",
                found=found,
            )
