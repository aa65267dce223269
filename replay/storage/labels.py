"""Labels of a data set's samples, where they can be had without reading whole samples."""

from collections.abc import Iterator
from typing import Any

import datasets
import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Subset

from mixer.reader import ColumnReader

Int64Array = NDArray[np.int64]

# Where labels are looked for unless a column is named; data sets of images and the like hold them as attributes.
_COLUMNS = ("label", "labels")
_ATTRIBUTES = ("label", "targets", "labels")


def read_labels(dataset: Any, indices: Int64Array, column: str | None = None) -> Int64Array | None:
    """Reads labels.

    They are the column of a Hugging Face data set or of a `ColumnReader`, or what an attribute of the data set holds
    for each sample.

    Args:
        dataset: A map-style data set.
        indices: int64 `[count]`: the samples.
        column: Name of the column or attribute; `None` takes the first that has whole numbers, of the columns `label`
            and `labels` or the attributes `label`, `targets` and `labels`.

    Returns:
        int64 `[count]`, or `None` if there are no whole numbers to be had so.
    """
    if type(dataset) is Subset:
        return read_labels(dataset.dataset, np.asarray(dataset.indices, dtype=np.int64)[indices], column)
    columns, attributes = (_COLUMNS, _ATTRIBUTES) if column is None else ((column,), (column,))
    if isinstance(dataset, datasets.Dataset):
        return _first(_of_table(dataset, indices, name) for name in columns)
    if isinstance(dataset, ColumnReader):
        read = dataset.read_columns(indices)
        if any(name in read for name in columns):
            return _first(_as_whole_numbers(read[name]) for name in columns if name in read)
    return _first(_of_attribute(dataset, indices, name) for name in attributes)


def _first(found: Iterator[Int64Array | None]) -> Int64Array | None:
    return next((labels for labels in found if labels is not None), None)


def _of_table(dataset: datasets.Dataset, indices: Int64Array, column: str) -> Int64Array | None:
    if column not in dataset.column_names:
        return None
    return _as_whole_numbers(dataset.with_format("numpy", columns=[column])[indices.tolist()][column])


def _of_attribute(dataset: Any, indices: Int64Array, name: str) -> Int64Array | None:
    held = getattr(dataset, name, None)
    if not isinstance(held, (torch.Tensor, np.ndarray, list, tuple)) or len(held) != len(dataset):
        return None
    is_list = isinstance(held, (list, tuple))
    return _as_whole_numbers([held[index] for index in indices.tolist()] if is_list else held[indices])


def _as_whole_numbers(values: Any) -> Int64Array | None:
    array = np.asarray(values)
    is_whole = array.ndim == 1 and (array.dtype.kind in "iub" or array.size == 0)
    return array.astype(np.int64) if is_whole else None
