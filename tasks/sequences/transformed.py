"""A data set whose inputs go through a transform that belongs to the task."""

from collections.abc import Mapping
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from torch import Tensor

from mixer.loading.reader import ColumnReader
from mixer.utils.arrays import Int64Array
from replay.storage.labels import read_labels
from tasks.sources.by_columns import ByColumns, Sample

_LABELS = ("label", "labels")


class Transform(Protocol):
    """What is done to inputs: always the same, since all that it needs was drawn when it was made."""

    def __call__(self, inputs: Tensor) -> Tensor:
        """Transforms each sample by itself.

        Args:
            inputs: `[count, ...]`.

        Returns:
            `[count, ...]`.
        """


class Transformed(ByColumns):
    """A data set with transformed inputs.

    Args:
        base: A data set that is read by columns.
        transform: What is done to the inputs; it draws no random numbers.
        input_name: Their column; `None` takes the only one beside the labels.

    Raises:
        ValueError: If there is no such column, or it is not clear which.
        TypeError: If the data set is not read by columns.
    """

    def __init__(self, base: Any, transform: Transform, input_name: str | None = None):
        self.base, self.transform = base, transform
        self.input_name = find_inputs(base, input_name)

    def __len__(self) -> int:
        return len(self.base)

    @cached_property
    def labels(self) -> Int64Array | None:
        """The classes, int64 `[num_samples]`; `None` where samples have none."""
        return read_labels(self.base)

    def read_columns(self, indices: Int64Array) -> Sample:
        """Reads several samples at once; see `ByColumns.read_columns`."""
        columns = dict(self.base.read_columns(indices))
        columns[self.input_name] = self.transform(columns[self.input_name])
        return columns


def find_inputs(dataset: Any, input_name: str | None = None) -> str:
    """Finds the column of the inputs.

    Args:
        dataset: A data set that is read by columns.
        input_name: Its name, if it was given.

    Returns:
        Its name.

    Raises:
        ValueError: If there is no such column, or it is not clear which.
        TypeError: If the data set is not read by columns.
    """
    columns = [name for name in first_row(dataset) if name not in _LABELS]
    if input_name is None and len(columns) == 1:
        return columns[0]
    if input_name not in columns:
        raise ValueError(f"input_name must be the column to transform, one of {columns}, got {input_name!r}.")
    return input_name


def first_row(dataset: Any) -> Mapping[str, Tensor]:
    """Reads the first sample by columns.

    Args:
        dataset: A data set that is read by columns.

    Returns:
        For each column a tensor `[1, ...]`.

    Raises:
        ValueError: If there is none.
        TypeError: If the data set is not read by columns.
    """
    is_reader = isinstance(dataset, ColumnReader)
    if not is_reader:
        raise TypeError(
            f"Inputs are transformed by columns, which a {type(dataset).__name__} does not give: put them into memory, "
            "tasks.sources.Arrays(inputs, labels), or give the data set a read_columns(indices)."
        )
    if len(dataset) == 0:
        raise ValueError(f"Inputs are found in the first sample, but the {type(dataset).__name__} is empty: add one.")
    row: Mapping[str, Tensor] = dataset.read_columns(np.zeros(1, dtype=np.int64))
    return row
