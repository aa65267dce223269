"""Tasks with blurred boundaries: samples of a class occur in all of them (Bang et al. 2021, blurry-M)."""

from typing import Any

import numpy as np

from mixer.utils.arrays import Int64Array
from tasks.sequences.parts import check_between, check_seed, class_labels, in_order, named, new_task
from tasks.task import TaskSequence


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
    labels, evaluated, classes = class_labels(train, evaluation)
    check_between("blurry: num_tasks", num_tasks, len(classes), "classes there are")
    groups = named(part.tolist() for part in np.array_split(in_order(classes, seed), num_tasks))
    generator = np.random.default_rng((seed, 1))
    place = np.empty(len(labels), dtype=np.int64)
    for number, group in enumerate(groups.values()):
        for label in group:
            own = np.flatnonzero(labels == label)
            place[own] = _spread(len(own), number, num_tasks, overlap, generator)
    tasks = (
        new_task(
            name,
            (train, evaluation),
            (place == number, np.isin(evaluated, group)),
            f"classes {', '.join(map(str, group))}, {overlap:g} of them in other tasks",
            group,
        )
        for number, (name, group) in enumerate(groups.items())
    )
    return TaskSequence(tuple(tasks), "free")


def _spread(count: int, own: int, num_tasks: int, overlap: float, generator: np.random.Generator) -> Int64Array:
    """Gives the task of each sample of a class."""
    places = np.full(count, own)
    others = generator.permutation(np.delete(np.arange(num_tasks), own))
    num_spread = min(round(count * overlap), count - 1) if len(others) else 0  # the task itself keeps one
    places[:num_spread] = np.resize(others, num_spread)
    return generator.permutation(places)
