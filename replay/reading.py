"""What a buffer's samples are read from, by address."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from mixer.deterministic import reads_without_randomness
from mixer.reader import ColumnReader
from replay.sources import Sources
from replay.storage import Rows

Int64Array = NDArray[np.int64]


class ReferenceReader:
    """Reads samples where references point to; workers may, for an address never means anything else.

    Args:
        sources: The data sets.
    """

    def __init__(self, sources: Sources):
        self._sources = sources
        self.draws_nothing = all(map(_draws_nothing, sources.datasets))

    def __getitem__(self, address: int) -> Any:
        return self._sources.read(np.array([address]))[0]

    def __getitems__(self, indices: list[int]) -> Sequence[Any]:
        return self._sources.read(np.array(indices, dtype=np.int64))


class ColumnReferenceReader(ReferenceReader):
    """The same where all data sets can be read by columns."""

    def read_columns(self, indices: Int64Array) -> Mapping[str, torch.Tensor]:
        """Reads several samples at once; see `mixer.reader.ColumnReader`.

        Args:
            indices: int64 `[count]`: addresses.

        Returns:
            For each column a tensor `[count, ...]`.
        """
        return self._sources.read_columns(indices)


def reference_reader(sources: Sources) -> ReferenceReader:
    """Gives the reader that suits the data sets.

    Args:
        sources: The data sets.

    Returns:
        One that reads by columns where all of them can be.
    """
    return (ColumnReferenceReader if sources.has_columns else ReferenceReader)(sources)


class HasRows(Protocol):
    """What keeps rows."""

    @property
    def rows(self) -> Rows:
        """The rows."""


class RowReader:
    """Reads contents that a buffer keeps; only the process that keeps them can.

    Args:
        buffer: The buffer.
    """

    is_in_place = True
    draws_nothing = True

    def __init__(self, buffer: HasRows):
        self._buffer = buffer

    def __getitem__(self, address: int) -> Any:
        return self.__getitems__([address])[0]

    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [row.sample for row in self._buffer.rows.read(np.array(indices, dtype=np.int64))]


def _draws_nothing(dataset: Any) -> bool:
    return isinstance(dataset, ColumnReader) or reads_without_randomness(dataset)
