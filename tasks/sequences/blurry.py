"""Tasks whose classes overlap.

blurry-M (Bang et al. 2021, arXiv:2103.17230), i-Blurry (Koh et al. 2022, arXiv:2110.10031), Si-Blurry (Moon et al.
2023, arXiv:2308.09303).
"""

from collections.abc import Sequence
from itertools import zip_longest

import numpy as np

from mixer.utils.arrays import Int64Array
from mixer.utils.data_set import DataSet
from mixer.utils.ranges import check_decay, check_range
from tasks.sequences.parts import check_between, check_seed, class_labels, class_tasks, in_order, named
from tasks.task import TaskSequence


def blurry(
    train: DataSet,
    evaluation: DataSet,
    num_tasks: int,
    overlap: float,
    seed: int,
    *,
    disjoint: float = 0.0,
    at_random: bool = False,
) -> TaskSequence:
    """Gives each task some classes, of which a share is spread over the other tasks.

    Every training sample is in exactly one task. A task is evaluated on its own classes alone. With neither option it
    is blurry-M, where `overlap` is M / 100; with `disjoint` i-Blurry-N-M, where that is N / 100; with both Si-Blurry.

    Args:
        train: A labelled data set.
        evaluation: Another, of the same classes.
        num_tasks: Number of tasks.
        overlap: Share of a class's training samples that are in other tasks, at least 0 and below 1.
        seed: Seed of the order of classes and of what is spread where.
        disjoint: Share of the classes that stay whole in their own task.
        at_random: Whether tasks get random numbers of classes (at least one) and of samples of the classes of others;
            otherwise as many each.

    Returns:
        The sequence, boundary-free.

    Raises:
        ValueError: If data have no labels, there are more tasks than classes, or a share is outside its range.
    """
    check_seed("blurry: seed", seed)
    check_decay("blurry: overlap", overlap, "it is the share of a class that other tasks have")
    check_range("blurry: disjoint", disjoint, 0.0, 1.0, "it is a share of the classes")
    labels, evaluated, classes = class_labels(train, evaluation)
    check_between("blurry: num_tasks", num_tasks, len(classes), "classes there are")
    generator = np.random.default_rng((seed, 1))
    groups = named(_groups(in_order(classes, seed), num_tasks, generator if at_random else None))
    # The first class of each task, the second of each, and so on: tasks have as many disjoint ones.
    by_turns = [label for row in zip_longest(*groups.values()) for label in row if label is not None]
    whole = set(by_turns[: round(disjoint * len(classes))])
    place = np.empty(len(labels), dtype=np.int64)
    for number, group in enumerate(groups.values()):
        for label in group:
            own = np.flatnonzero(labels == label)
            share = 0.0 if label in whole else float(overlap)
            place[own] = _spread(len(own), number, num_tasks, share, generator, at_random)
    note, numbers = f", {overlap:g} of them in other tasks", {label: label for label in classes}
    note += f" except {len(whole)} classes of all tasks" if whole else ""
    return TaskSequence(class_tasks((train, evaluation), (place, evaluated), groups, numbers, note), "free")


def _groups(classes: Int64Array, num_tasks: int, generator: np.random.Generator | None) -> Sequence[Sequence[int]]:
    """Cuts the classes into groups of about the same size, or at random."""
    if generator is None:
        return [part.tolist() for part in np.array_split(classes, num_tasks)]
    cuts = np.sort(generator.choice(np.arange(1, len(classes)), num_tasks - 1, replace=False))
    return [part.tolist() for part in np.split(classes, cuts)]


def _spread(
    count: int, own: int, num_tasks: int, overlap: float, generator: np.random.Generator, at_random: bool
) -> Int64Array:
    """Returns the task of each sample of a class."""
    places = np.full(count, own)
    others = generator.permutation(np.delete(np.arange(num_tasks), own))
    num_spread = min(round(count * overlap), count - 1) if len(others) else 0  # the task itself keeps one
    places[:num_spread] = (
        generator.choice(others, num_spread) if at_random and num_spread else np.resize(others, num_spread)
    )
    return generator.permutation(places)
