"""What data sets of tasks have in common: samples are equal-shaped tensors with a label each, read by columns."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np
import torch
from torch.utils.data import Dataset

from mixer.utils.arrays import Int64Array

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
