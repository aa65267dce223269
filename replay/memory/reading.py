"""Readers of the samples of a buffer, by address."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from mixer.loading.reader import ColumnReader, reads_without_randomness
from mixer.utils.arrays import Int64Array
from replay.storage import Rows
from replay.storage.sources import Sources


class ReferenceReader:
    """Reads samples where references point to; workers may, for an address never means anything else.

    Data sets that are added later can be read too, in the process that adds them.

    Args:
        sources: Gives the data sets.
        datasets: Those that are to be read in place of what has their name there.
    """

    def __init__(self, sources: Callable[[], Sources], datasets: Mapping[str, Any]):
        self._sources_now: Callable[[], Sources] | None = sources
        self._datasets = datasets
        self._known: tuple[int, ...] = ()
        self._replaced = Sources()
        self.draws_nothing = all(
            isinstance(dataset, ColumnReader) or reads_without_randomness(dataset) for dataset in self._sources.datasets
        )

    @property
    def _sources(self) -> Sources:
        if self._sources_now is not None:
            sources = self._sources_now()
            known = tuple(map(id, (sources, *sources.datasets)))
            if known != self._known:
                own = {name: dataset for name, dataset in self._datasets.items() if name in sources.names}
                self._known, self._replaced = known, sources.replaced(own)
        return self._replaced

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_replaced": self._sources, "_sources_now": None}

    def __getitem__(self, address: int) -> Any:
        return self._sources.read(np.array([address]))[0]

    def __getitems__(self, indices: list[int]) -> Sequence[Any]:
        return self._sources.read(np.array(indices, dtype=np.int64))


class ColumnReferenceReader(ReferenceReader):
    """The same where all data sets can be read by columns."""

    def read_columns(self, indices: Int64Array) -> Mapping[str, torch.Tensor]:
        """Reads several samples at once; see `mixer.loading.reader.ColumnReader`.

        Args:
            indices: int64 `[count]`: addresses.

        Returns:
            For each column a tensor `[count, ...]`.
        """
        return self._sources.read_columns(indices)


class RowReader:
    """Reads contents that a buffer stores; only the process that stores them can."""

    is_in_place = True
    draws_nothing = True

    def __init__(self, rows: Callable[[], Rows]):
        self._rows = rows

    def __getitem__(self, address: int) -> Any:
        return self.__getitems__([address])[0]

    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [row.sample for row in self._rows().read(np.array(indices, dtype=np.int64))]
