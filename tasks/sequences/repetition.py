"""Class-incremental learning with repetition (Hemati et al. 2023, arXiv:2301.11396): classes come back in later tasks.

The two generators of the paper, with one change: the samples of a class are shared out evenly over its tasks, so that
each is in exactly one.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from mixer.utils.arrays import BoolArray, Int64Array
from mixer.utils.data_set import DataSet
from mixer.utils.errors import InvalidValueError
from mixer.utils.ranges import check_count, check_range
from tasks.sequences.parts import check_between, check_seed, class_labels, class_tasks, named
from tasks.task import TaskSequence


def repeated(train: DataSet, evaluation: DataSet, num_tasks: int, classes_per_task: int, seed: int) -> TaskSequence:
    """Gives every task the same number of classes, and every class the same number of tasks (slot-based generator).

    As few classes as fill all tasks once are plain class-incremental learning; all classes in each task are as many
    parts of the whole. A task is evaluated on its own classes.

    Args:
        train: A labelled data set.
        evaluation: Another, of the same classes.
        num_tasks: Number of tasks.
        classes_per_task: Number of classes of each.
        seed: Seed of which classes are in which task, and of their samples.

    Returns:
        The sequence, boundary-free. The tasks of two classes differ by at most one in number, and so do a class's
        samples in its tasks.

    Raises:
        ValueError: If data have no labels, there is no place for a class, or a class has fewer samples than tasks.

    Example:
        >>> from tasks.sources import digits
        >>> [len(task.classes) for task in repeated(*digits(), num_tasks=5, classes_per_task=4, seed=0)]
        [4, 4, 4, 4, 4]
    """
    check_seed("repeated: seed", seed)
    check_count("repeated: num_tasks", num_tasks, 1, "10 to 500 are usual")
    labels, evaluated, classes = class_labels(train, evaluation)
    check_between("repeated: classes_per_task", classes_per_task, len(classes), "classes there are")
    if num_tasks * classes_per_task < len(classes):
        raise InvalidValueError.about(
            "num_tasks",
            f"{num_tasks} by {classes_per_task} classes have no place for {len(classes)}: raise one of them.",
        )
    generator = np.random.default_rng((seed, 2))
    present = _slots(len(classes), num_tasks, classes_per_task, generator)
    return _sequence((train, evaluation), (labels, evaluated), classes, present, generator)


def _slots(num_classes: int, num_tasks: int, per_task: int, generator: np.random.Generator) -> BoolArray:
    """Draws which classes are in which task, `[num_classes, num_tasks]`: `per_task` in each, all equally often."""
    left = np.full(num_classes, num_tasks * per_task // num_classes)
    left[generator.permutation(num_classes)[: num_tasks * per_task % num_classes]] += 1
    present = np.zeros((num_classes, num_tasks), dtype=np.bool_)
    for number in range(num_tasks):
        # A class with as many slots left as there are tasks is in all of them; there are never too many of these.
        due = np.flatnonzero(left == num_tasks - number)
        others = np.flatnonzero((left > 0) & (left < num_tasks - number))
        chosen = due
        if per_task > len(due):
            shares = left[others] / left[others].sum()
            chosen = np.concatenate([due, generator.choice(others, per_task - len(due), replace=False, p=shares)])
        present[chosen, number], left[chosen] = True, left[chosen] - 1
    return present


def repeated_at_random(
    train: DataSet,
    evaluation: DataSet,
    num_tasks: int,
    first: float,
    repetition: float | Mapping[int, float],
    seed: int,
) -> TaskSequence:
    """Draws when a class comes first, and in which later tasks it comes back (sampling-based generator).

    A task that would have no class gets the one that was longest away. A task is evaluated on its own classes.

    Args:
        train: A labelled data set.
        evaluation: Another, of the same classes.
        num_tasks: Number of tasks.
        first: Parameter of the geometric distribution of first occurrences, above 0 and at most 1: with 1 all classes
            come in the first task, with less some come later. The earliest come in the first task in any case.
        repetition: Probability that a class is in a task after its first, from 0 to 1; or that of each class, so that
            some come back more often than others.
        seed: Seed of that, and of which samples are where.

    Returns:
        The sequence, boundary-free. A class's samples in its tasks differ by at most one in number.

    Raises:
        ValueError: If data have no labels, a probability is outside its range, or a class has fewer samples than tasks.
    """
    called = "repeated_at_random"
    check_seed(f"{called}: seed", seed)
    check_count(f"{called}: num_tasks", num_tasks, 1, "10 to 500 are usual")
    check_range(f"{called}: first", first, 1e-9, 1.0, "1 lets all classes come in the first task")
    labels, evaluated, classes = class_labels(train, evaluation)
    given = repetition if isinstance(repetition, Mapping) else dict.fromkeys(classes, repetition)
    if missing := [label for label in classes if label not in given]:
        raise InvalidValueError.about(
            "repetition", f"must have a probability for each class, but lacks {missing[:10]}."
        )
    for label in classes:
        check_range(f"{called}: repetition (of class {label})", given[label], 0.0, 1.0, "0 never brings it back")
    generator = np.random.default_rng((seed, 3))
    chances = (1.0 - first) ** np.arange(num_tasks)
    begins = generator.choice(num_tasks, len(classes), p=chances / chances.sum())
    begins -= begins.min()
    comes_back = generator.random((len(classes), num_tasks)) < np.array([[given[label]] for label in classes])
    tasks = np.arange(num_tasks)
    present = (tasks == begins[:, None]) | ((tasks > begins[:, None]) & comes_back)
    _fill_empty(present, begins)
    return _sequence((train, evaluation), (labels, evaluated), classes, present, generator)


def _fill_empty(present: BoolArray, begins: Int64Array) -> None:
    """Puts into each task without a class the known one that was longest away."""
    for number in np.flatnonzero(~present.any(axis=0)):
        last = [np.flatnonzero(row[:number]).max(initial=-1) for row in present]
        known = np.flatnonzero(begins < number)
        present[known[np.argmin(np.take(last, known))], number] = True


def _sequence(
    splits: tuple[Any, Any],
    labels: tuple[Int64Array, Int64Array],
    classes: list[int],
    present: BoolArray,
    generator: np.random.Generator,
) -> TaskSequence:
    """Makes the tasks, in which the classes are present as `[num_classes, num_tasks]` says."""
    train, evaluated = labels
    place = np.empty(len(train), dtype=np.int64)
    for label, row in zip(classes, present, strict=True):
        own, tasks = generator.permutation(np.flatnonzero(train == label)), np.flatnonzero(row)
        if len(own) < len(tasks):
            raise InvalidValueError.about(
                "num_tasks", f"class {label} has {len(own)} samples for the {len(tasks)} tasks that it is in."
            )
        place[own] = np.repeat(tasks, [len(part) for part in np.array_split(own, len(tasks))])
    groups = named([label for label, is_in in zip(classes, column, strict=True) if is_in] for column in present.T)
    numbers = {label: label for label in classes}
    return TaskSequence(class_tasks(splits, (place, evaluated), groups, numbers, ", a part of each"), "free")
