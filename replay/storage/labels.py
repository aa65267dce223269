"""Labels of a data set's samples, where they can be had without reading whole samples."""

from typing import Any

import datasets
import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Subset

from mixer.reader import ColumnReader

Int64Array = NDArray[np.int64]

# What data sets of images and the like call the labels of all their samples.
_ATTRIBUTES = ("targets", "labels")


def read_labels(dataset: Any, indices: Int64Array, column: str) -> Int64Array | None:
    """Reads labels.

    They are the column of a Hugging Face data set or of a `ColumnReader`, or what an attribute of the data set with the
    column's name, or `targets` or `labels`, holds for each sample.

    Args:
        dataset: A map-style data set.
        indices: int64 `[count]`: the samples.
        column: Name of the column.

    Returns:
        int64 `[count]`, or `None` if there are no whole numbers to be had so.
    """
    if type(dataset) is Subset:
        return read_labels(dataset.dataset, np.asarray(dataset.indices, dtype=np.int64)[indices], column)
    if isinstance(dataset, datasets.Dataset):
        return _of_table(dataset, indices, column)
    if isinstance(dataset, ColumnReader):
        columns = dataset.read_columns(indices)
        if column in columns:
            return _as_whole_numbers(columns[column])
    return _of_attribute(dataset, indices, column)


def _of_table(dataset: datasets.Dataset, indices: Int64Array, column: str) -> Int64Array | None:
    if column not in dataset.column_names:
        return None
    return _as_whole_numbers(dataset.with_format("numpy", columns=[column])[indices.tolist()][column])


def _of_attribute(dataset: Any, indices: Int64Array, column: str) -> Int64Array | None:
    for name in (column, *_ATTRIBUTES):
        held = getattr(dataset, name, None)
        if isinstance(held, (torch.Tensor, np.ndarray, list, tuple)) and len(held) == len(dataset):
            is_list = isinstance(held, (list, tuple))
            return _as_whole_numbers([held[index] for index in indices.tolist()] if is_list else held[indices])
    return None


def _as_whole_numbers(values: Any) -> Int64Array | None:
    array = np.asarray(values)
    is_whole = array.ndim == 1 and (array.dtype.kind in "iub" or array.size == 0)
    return array.astype(np.int64) if is_whole else None
