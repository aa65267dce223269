"""Labels of a data set, read without reading whole samples if possible."""

from collections.abc import Iterator, Sequence
from typing import Any

import datasets
import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Subset

from mixer.loading.reader import ColumnReader
from mixer.utils.arrays import Int64Array
from mixer.utils.data_set import DataSet
from mixer.utils.random_state import drawn_places

# Where labels are looked for unless a column is named; data sets of images and the like hold them as attributes.
_COLUMNS = ("label", "labels")
_ATTRIBUTES = ("label", "targets", "labels")
_NUM_COMPARED = 8
_MOST_AT_ONCE = 4_096


class Labels:
    """Where the labels of a data set come from; what takes reading samples is found out once.

    The column of a Hugging Face data set is read by itself. A `ColumnReader` gives whole samples only, so an attribute
    stands for its column where it has one whole number per sample and the same numbers on a few samples spread over the
    data set. It is called as the column; where none is named and there is one column of labels, `label` and `labels`
    are the same. Where attribute and column differ the column is read: its numbers are what a model is trained on. For
    that reason `targets`, often the classes before a transform of theirs, stand for no column but that of their name.
    That they differ on other samples only is an error of the data set that is not found. Where there is no such
    column, and of other data sets, the attribute is taken as it is.

    Args:
        dataset: A map-style data set, which must not change.
        column: Name of the column or attribute; `None` takes the first that has whole numbers, of the columns `label`
            and `labels` or the attributes `label`, `targets` and `labels`.
    """

    def __init__(self, dataset: Any, column: str | None = None):
        self._base = Labels(dataset.dataset, column) if type(dataset) is Subset else None
        self._dataset = dataset
        self._columns: tuple[str, ...] = _COLUMNS if column is None else (column,)
        self._attributes: tuple[str, ...] = _ATTRIBUTES if column is None else (column,)
        self._reads_columns = False
        if isinstance(dataset, ColumnReader):
            self._compare(dataset)

    def read(self, indices: Int64Array | None = None) -> Int64Array | None:
        """Reads labels.

        Args:
            indices: int64 `[count]`: the samples; `None` for all.

        Returns:
            int64 `[count]`, or `None` if there are no whole numbers to be had so.
        """
        wanted = np.arange(len(self._dataset), dtype=np.int64) if indices is None else indices
        if self._base is not None:
            return self._base.read(np.asarray(_taken(self._dataset.indices, wanted), dtype=np.int64))
        if isinstance(self._dataset, datasets.Dataset):
            return _first(_of_table(self._dataset, wanted, name) for name in self._columns)
        held = _first(_of_attribute(self._dataset, wanted, name) for name in self._attributes)
        return self._from_columns(self._dataset, wanted) if held is None and self._reads_columns else held

    def _compare(self, dataset: ColumnReader) -> None:
        """Finds out whether a column has to be read, or which attribute has the same numbers."""
        some = drawn_places(len(self._dataset), _NUM_COMPARED, 0)
        read = dataset.read_columns(some)
        trained_on = {name: _as_whole_numbers(read[name]) for name in self._columns if name in read}
        whole = [(name, numbers) for name, numbers in trained_on.items() if numbers is not None]
        if not whole:
            self._attributes = () if trained_on else self._attributes
            return
        column, numbers = whole[0]
        names = [column, *(name for name in self._columns if name not in read)]
        held = {name: _of_attribute(dataset, some, name) for name in names}
        same = [name for name, own in held.items() if own is not None and np.array_equal(own, numbers)]
        self._reads_columns, self._attributes = True, tuple(same[:1])

    def _from_columns(self, dataset: ColumnReader, indices: Int64Array) -> Int64Array | None:
        """Reads whole samples for their labels, not all at once."""
        parts = []
        for start in range(0, len(indices), _MOST_AT_ONCE):
            read = dataset.read_columns(indices[start : start + _MOST_AT_ONCE])
            part = _first(_as_whole_numbers(read[name]) for name in self._columns if name in read)
            if part is None:
                return None
            parts.append(part)
        return np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)


def read_labels(dataset: DataSet, indices: Int64Array | None = None, column: str | None = None) -> Int64Array | None:
    """Reads labels once; see `Labels`, which is for reading them again and again.

    Args:
        dataset: A map-style data set.
        indices: int64 `[count]`: the samples; `None` for all.
        column: Name of the column or attribute; `None` looks for one.

    Returns:
        int64 `[count]`, or `None` if there are no whole numbers to be had so.
    """
    return Labels(dataset, column).read(indices)


def _first(found: Iterator[Int64Array | None]) -> Int64Array | None:
    return next((labels for labels in found if labels is not None), None)


def _of_table(dataset: datasets.Dataset, indices: Int64Array, column: str) -> Int64Array | None:
    if column not in dataset.column_names:
        return None
    return _as_whole_numbers(dataset.with_format("numpy", columns=[column])[indices.tolist()][column])


def _of_attribute(dataset: Any, indices: Int64Array, name: str) -> Int64Array | None:
    held = getattr(dataset, name, None)
    if not isinstance(held, (torch.Tensor, np.ndarray, list, tuple)) or getattr(held, "ndim", 1) == 0:
        return None
    return _as_whole_numbers(_taken(held, indices)) if len(held) == len(dataset) else None


def _taken(held: Sequence[Any] | NDArray[Any] | torch.Tensor, indices: Int64Array) -> Any:
    """Returns some entries without going through all of them."""
    return held[indices] if isinstance(held, (torch.Tensor, np.ndarray)) else [held[i] for i in indices.tolist()]


def _as_whole_numbers(values: Any) -> Int64Array | None:
    array = np.asarray(values)
    is_whole = array.ndim == 1 and (array.dtype.kind in "iub" or array.size == 0)
    return array.astype(np.int64) if is_whole else None
