"""Data sets read by columns, and the one in memory."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Dataset

from mixer.utils.arrays import Int64Array
from mixer.utils.errors import InvalidValueError

Sample = dict[str, torch.Tensor]


class ByColumns(Dataset[Sample], ABC):
    """A data set that is read by columns (`mixer.loading.reader.ColumnReader`); single samples are rows of them."""

    @abstractmethod
    def __len__(self) -> int: ...

    @property
    @abstractmethod
    def labels(self) -> Int64Array | None:
        """The classes, int64 `[num_samples]`; `None` where samples have none."""

    @abstractmethod
    def read_columns(self, indices: Int64Array) -> Sample:
        """Reads several samples at once.

        Args:
            indices: int64 `[count]`: which ones.

        Returns:
            For each column a tensor `[count, ...]` of its own memory.
        """

    def __getitem__(self, index: int) -> Sample:
        if not -len(self) <= index < len(self):
            raise IndexError(f"There are {len(self)} samples, numbered from 0; there is none at {index}.")
        return self.__getitems__([index % len(self)])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Sample]:
        columns = self.read_columns(np.asarray(indices, dtype=np.int64))
        return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


class InMemory(ByColumns):
    """Columns in memory, `labels` among them.

    Args:
        columns: Tensors or arrays `[num_samples, ...]` by name; no copy is made.
    """

    def __init__(self, columns: Mapping[str, Any]):
        self._columns = {name: torch.as_tensor(values) for name, values in columns.items()}

    def __len__(self) -> int:
        return len(self._columns["labels"])

    @property
    def labels(self) -> Int64Array:
        """The classes, int64 `[num_samples]`."""
        return self._columns["labels"].numpy()

    def read_columns(self, indices: Int64Array) -> Sample:
        """Reads several samples at once; see `ByColumns.read_columns`."""
        picked = torch.from_numpy(indices)
        return {name: values.index_select(0, picked) for name, values in self._columns.items()}


class Arrays(InMemory):
    """A labelled data set in memory: columns `input_name` and `labels`.

    Args:
        inputs: `[num_samples, ...]`, of any dtype; no copy is made.
        labels: Whole numbers `[num_samples]`: the classes.
        input_name: What the model calls its inputs.

    Raises:
        ValueError: If the lengths differ, labels are no whole numbers or the name is taken.

    Example:
        >>> Arrays(np.zeros((2, 3)), [0, 1])[1]["labels"]
        tensor(1)
    """

    def __init__(
        self,
        inputs: torch.Tensor | NDArray[Any],
        labels: torch.Tensor | NDArray[Any] | Sequence[int],
        input_name: str = "pixel_values",
    ):
        self.inputs, self.input_name = torch.as_tensor(inputs), input_name
        own = np.asarray(labels)
        if own.ndim != 1 or (own.dtype.kind not in "iub" and own.size):
            raise InvalidValueError.about(
                "labels", f"must be whole numbers on one axis, got {own.dtype} {[*own.shape]}."
            )
        if self.inputs.ndim == 0 or len(self.inputs) != len(own):
            shape = list(self.inputs.shape)
            raise InvalidValueError.about("inputs", f"must have one row per label, got {shape} for {len(own)} labels.")
        if input_name == "labels":
            raise InvalidValueError.about("input_name", "must be another than 'labels', which is that of the classes.")
        super().__init__({input_name: self.inputs, "labels": own.astype(np.int64)})
