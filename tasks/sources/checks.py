"""Checked reads of data sets: their labels, other columns, and whether a sample is the same when read again."""

import math
import pickle
from typing import Any

import datasets
import numpy as np
import pandas as pd
from numpy.typing import NDArray

from mixer.utils.arrays import Int64Array
from mixer.utils.errors import InvalidTypeError, InvalidValueError
from mixer.utils.random_state import RandomState, drawn_places, seed_generators
from replay.storage.codec import EncodedRow, Row, encode
from replay.storage.labels import read_labels

_NUM_SAMPLES = 8
_NUM_COMPARISONS = 16  # of one change in two all but one in 65,536 are found
_PLACE = 0x5EED


def check_map_style(dataset: Any, called: str) -> None:
    """Raises a `TypeError` if a data set has no `__len__` or `__getitem__`; `called` names it."""
    if not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
        raise InvalidTypeError.about(
            called, f"must have __len__ and __getitem__, but {type(dataset).__name__} lacks them."
        )


def find_unrepeatable(dataset: Any) -> int | None:
    """Finds a sample that differs between reads, with the random generators in different states.

    Reads a few samples, drawn alike in every run, three times or more. The generators of the process are restored.

    Args:
        dataset: A map-style data set that is not empty.

    Returns:
        The index of such a sample; `None` if there is none.
    """
    indices = drawn_places(len(dataset), _NUM_SAMPLES, 0).tolist()
    num_again = max(2, math.ceil(_NUM_COMPARISONS / len(indices)))
    state = RandomState.capture()
    try:
        first = [_read(dataset, index, 0) for index in indices]
        for again in range(1, num_again + 1):
            for index, sample in zip(indices, first, strict=True):
                if sample != _read(dataset, index, again):
                    return int(index)
        return None
    finally:
        state.restore()


def _read(dataset: Any, index: int, again: int) -> EncodedRow | bytes:
    """Reads a sample to compare, with the generators elsewhere each time, also if its data set puts them back."""
    seed_generators(_PLACE, index, again)
    sample = dataset[index]
    try:
        return encode(Row(sample))
    except TypeError:  # of a kind that no buffer could keep
        return pickle.dumps(sample)


def require_labels(dataset: Any, called: str) -> Int64Array:
    """Reads the classes of all samples, int64 `[num_samples]`; raises a `ValueError` if there are none."""
    check_map_style(dataset, called)
    labels = read_labels(dataset)
    if labels is None:
        raise InvalidValueError.about(
            called, "must have whole numbers as 'label', 'labels' or 'targets', one per sample."
        )
    return labels


def labels_in(dataset: Any) -> tuple[int, ...] | None:
    """Returns the classes of a data set, ascending; `None` if samples have no integer label."""
    labels = read_labels(dataset)
    return None if labels is None else tuple(np.unique(labels).tolist())


def label_column(dataset: Any) -> str:
    """Returns the name of the class column, `"label"` or `"labels"`: the first with integers."""
    return "labels" if read_labels(dataset, np.zeros(1, dtype=np.int64), "label") is None else "label"


def require_column(dataset: Any, column: str, called: str) -> NDArray[Any]:
    """Reads a column of all samples.

    Args:
        dataset: A Hugging Face data set, or one with an attribute of that name.
        column: Name of the column or attribute.
        called: What to call the data set in an error.

    Returns:
        `[num_samples]`, of any dtype.

    Raises:
        ValueError: If there is no such column, it has not one value per sample, or some are missing.
        TypeError: If the data set cannot be indexed.
    """
    check_map_style(dataset, called)
    if isinstance(dataset, datasets.Dataset):
        known = column in dataset.column_names
        held = dataset.with_format("numpy", columns=[column])[:][column] if known else None
        others = f"its columns are {dataset.column_names}"
    else:
        held = getattr(dataset, column, None)
        others = f"in {type(dataset).__name__} it would be an attribute with one entry per sample"
    values = np.asarray(held)
    if values.ndim != 1 or len(values) != len(dataset):
        raise InvalidValueError.about(
            called, f"lacks a column {column!r}, one value per sample; {others}.", found=column
        )
    missing = int(pd.isna(values).sum())
    if missing:
        raise InvalidValueError.about(called, f"lacks {column!r} in {missing} samples: fill it in, or leave those out.")
    return values
