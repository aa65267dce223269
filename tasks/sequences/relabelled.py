"""A data set whose classes have other numbers."""

from collections.abc import Mapping
from typing import Any

import datasets
import numpy as np
import torch

from mixer.loading.reader import ColumnReader
from mixer.utils.arrays import Int64Array
from tasks.sources.by_columns import ByColumns, Sample
from tasks.sources.labels import label_column, require_labels


class Relabelled(ByColumns):
    """A data set with classes of its own.

    Args:
        base: A data set that is read by columns.
        labels: int64 `[num_samples]`: the classes.
    """

    def __init__(self, base: Any, labels: Int64Array):
        self.base, self._labels, self._column = base, labels, label_column(base)

    def __len__(self) -> int:
        return len(self.base)

    @property
    def labels(self) -> Int64Array:
        """The classes, int64 `[num_samples]`."""
        return self._labels

    def read_columns(self, indices: Int64Array) -> Sample:
        """Reads several samples at once; see `ByColumns.read_columns`."""
        columns = dict(self.base.read_columns(indices))
        columns[self._column] = torch.from_numpy(self._labels[indices])
        return columns


def relabel(dataset: Any, numbers: Mapping[int, int]) -> Any:
    """Gives classes other numbers.

    Args:
        dataset: A data set that is read by columns, or a Hugging Face one.
        numbers: The new number of each class.

    Returns:
        A data set of the same samples.

    Raises:
        ValueError: If the data set has no labels, or one of them no new number.
        TypeError: If it is of another kind.
    """
    labels = require_labels(dataset, "relabel")
    missing = sorted(set(np.unique(labels).tolist()) - set(numbers))
    if missing:
        raise ValueError(f"relabel: numbers must have a new one for every class, but lacks {missing}.")
    renumbered = np.array([numbers[label] for label in labels.tolist()], dtype=np.int64)
    if isinstance(dataset, datasets.Dataset):
        name = label_column(dataset)
        return dataset.remove_columns(name).add_column(name, renumbered)
    if isinstance(dataset, ColumnReader):
        return Relabelled(dataset, renumbered)
    raise TypeError(
        f"Classes of a {type(dataset).__name__} cannot be numbered anew: put the data into memory, "
        "tasks.sources.Arrays(inputs, labels), or number them 0, 1, ... in each task beforehand."
    )
