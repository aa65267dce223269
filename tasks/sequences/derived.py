"""Sequences made of data sets or of other sequences: paired, numbered apart, or joined for offline training."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import datasets
import numpy as np
import torch
from torch.utils.data import ConcatDataset

from mixer.loading.reader import ColumnReader
from mixer.utils.arrays import Int64Array
from mixer.utils.data_set import DataSet
from mixer.utils.errors import InvalidTypeError, InvalidValueError
from mixer.utils.held_out import hold_out
from replay.storage.labels import read_labels
from tasks.sequences.data_sets import pick, relabel
from tasks.sequences.parts import check_between
from tasks.sources.arrays import ByColumns, Sample
from tasks.task import Scenario, Task, TaskSequence


class Joined(ByColumns):
    """Data sets that are read by columns, one behind the other.

    Args:
        parts: The data sets, at least one, with the same columns.
    """

    def __init__(self, parts: Sequence[DataSet]):
        self.parts = tuple(parts)
        self._ends = np.cumsum([len(part) for part in self.parts])

    def __len__(self) -> int:
        return int(self._ends[-1])

    @cached_property
    def labels(self) -> Int64Array | None:
        """The classes, int64 `[num_samples]`; `None` where a part has none."""
        return _labels_of_all(self.parts)

    def read_columns(self, indices: Int64Array) -> Sample:
        """Reads several samples at once; see `ByColumns.read_columns`."""
        parts = np.searchsorted(self._ends, indices, side="right")
        order = np.argsort(parts, kind="stable")
        used = np.unique(parts).tolist() or [0]
        starts = self._ends - [len(part) for part in self.parts]
        read = [self.parts[part].read_columns(indices[parts == part] - starts[part]) for part in used]
        back = torch.from_numpy(np.argsort(order))
        return {name: torch.cat([columns[name] for columns in read]).index_select(0, back) for name in read[0]}


class _OfAnyKind(ConcatDataset[Any]):
    """Like torch's, with the classes where it has them."""

    def __init__(self, parts: Sequence[DataSet]):
        super().__init__(parts)
        self.labels = _labels_of_all(parts)


def joined(sequence: TaskSequence, name: str = "all") -> TaskSequence:
    """Makes one task of all.

    Args:
        sequence: The tasks.
        name: What the one is called.

    Returns:
        A sequence of one task, with all samples of all tasks in their order.

    Example:
        >>> from tasks.sequences import by_class
        >>> from tasks.sources import Arrays
        >>> data = Arrays(np.zeros((4, 3)), [0, 1, 2, 3])
        >>> len(joined(by_class(data, data, 2))["all"].train)
        4
    """
    train, evaluation = (_join([getattr(task, part) for task in sequence]) for part in ("train", "evaluation"))
    return TaskSequence((Task(name, train, evaluation, description="all tasks at once"),), sequence.scenario)


def _join(parts: list[Any]) -> Any:
    if all(isinstance(part, datasets.Dataset) for part in parts):
        return datasets.concatenate_datasets(parts)
    return Joined(parts) if all(isinstance(part, ColumnReader) for part in parts) else _OfAnyKind(parts)


def _labels_of_all(parts: Sequence[Any]) -> Int64Array | None:
    found = [read_labels(part) for part in parts]
    known = [labels for labels in found if labels is not None]
    return np.concatenate(known) if len(known) == len(found) else None


def held_out_of_training(sequence: TaskSequence, num_tasks: int, share: float = 0.2) -> TaskSequence:
    """Makes a sequence to choose strengths by: the first tasks, each evaluated on samples held out of its training.

    The evaluation samples of the tasks are in no part of it. Chaudhry et al. 2019, "A-GEM", arXiv:1812.00420, choose on
    the first 3 tasks, too, and report on the others.

    Args:
        sequence: The tasks.
        num_tasks: Number of tasks to keep.
        share: Share of a task's training samples that is held out, of each class alike; drawn alike for tasks of equal
            size, so that a sample which is in several of them is held out of all.

    Raises:
        ValueError: If there are fewer tasks, or a class has too few samples.
    """
    check_between("num_tasks", num_tasks, len(sequence), "tasks there are")
    tasks = []
    for task in sequence.tasks[:num_tasks]:
        labels, num_held = read_labels(task.train), max(1, round(share * len(task.train)))
        places = None if labels is None else np.unique(labels, return_inverse=True)[1]
        kept, held = hold_out(len(task.train), num_held, 0, places)
        tasks.append(Task(task.name, pick(task.train, kept), pick(task.train, held), task.classes, task.description))
    return TaskSequence(tuple(tasks), sequence.scenario)


def from_data_sets(
    data_sets: Mapping[str, tuple[DataSet, DataSet] | list[DataSet]], scenario: Scenario
) -> TaskSequence:
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
        raise InvalidTypeError.about(
            "data_sets", f"must be {{NAME: (train, evaluation)}}, got {type(data_sets).__name__}."
        )
    for name, pair in data_sets.items():
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise InvalidTypeError.about("data_sets", f"must have a pair as {name!r}, got {type(pair).__name__}.")
    return TaskSequence(tuple(Task(name, *pair) for name, pair in data_sets.items()), scenario)


def number_apart(sequence: TaskSequence, scenario: Scenario = "task") -> TaskSequence:
    """Numbers the classes of one task after the other 0, 1, ..., as a head for each task needs it.

    Args:
        sequence: Tasks with classes; two of them may have some in common.
        scenario: What the new sequence is.

    Returns:
        A sequence of the same samples. A task's classes keep their order.

    Raises:
        ValueError: If a task has no classes, or labels beside them.
        TypeError: If data are of a kind that cannot be relabelled.
    """
    without = [task.name for task in sequence if task.classes is None]
    if without:
        raise InvalidValueError.about("sequence", f"must have classes in all tasks, but {without} have none.")
    tasks, num_classes = [], 0
    for task in sequence:
        numbers = {label: number for number, label in enumerate(task.classes or (), num_classes)}
        num_classes += len(numbers)
        train, evaluation = relabel(task.train, numbers), relabel(task.evaluation, numbers)
        tasks.append(Task(task.name, train, evaluation, tuple(numbers.values()), task.description))
    return TaskSequence(tuple(tasks), scenario)
