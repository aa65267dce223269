"""All tasks joined into one: offline training, the upper bound for continual learning."""

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import datasets
import numpy as np
import torch
from torch.utils.data import ConcatDataset

from mixer.loading.reader import ColumnReader
from mixer.utils.arrays import Int64Array
from replay.storage.labels import read_labels
from tasks.sources.arrays import ByColumns, Sample
from tasks.task import Task, TaskSequence


class Joined(ByColumns):
    """Data sets that are read by columns, one behind the other.

    Args:
        parts: The data sets, at least one, with the same columns.
    """

    def __init__(self, parts: Sequence[Any]):
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
        groups = np.split(order, np.flatnonzero(np.diff(parts[order])) + 1)
        read = [self._read(int(parts[group[0]]) if len(group) else 0, indices[group]) for group in groups]
        back = torch.from_numpy(np.argsort(order))
        return {name: torch.cat([columns[name] for columns in read]).index_select(0, back) for name in read[0]}

    def _read(self, part: int, indices: Int64Array) -> Sample:
        start = self._ends[part - 1] if part else 0
        return dict(self.parts[part].read_columns(indices - start))


class _OfAnyKind(ConcatDataset[Any]):
    """Like torch's, with the classes where it has them."""

    def __init__(self, parts: Sequence[Any]):
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
