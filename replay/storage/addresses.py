"""Addresses of samples: which source, and where in it, in one whole number."""

from typing import Any

import numpy as np

from mixer.utils.arrays import Int64Array

_INDEX_BITS = 40
_MAX_INDEX = 2**_INDEX_BITS
MAX_SOURCES = 2**22


def addresses(source_id: int, indices: Any) -> Int64Array:
    """Makes addresses of samples.

    Args:
        source_id: Id of their source.
        indices: Whole numbers `[count]`: which ones.

    Returns:
        int64 `[count]`: `source_id << 40 | index`.

    Raises:
        ValueError: If a number is too large or negative.
    """
    array = np.asarray(indices, dtype=np.int64)
    if not 0 <= source_id < MAX_SOURCES:
        raise ValueError(f"source_id has to be in [0, 2^22), not {source_id}: a buffer remembers so many sources.")
    if array.size and not (array.min() >= 0 and array.max() < _MAX_INDEX):
        worst = array.min() if array.min() < 0 else array.max()
        raise ValueError(f"indices have to be in [0, 2^40), found {worst}. Count from the data set's beginning.")
    return np.int64(source_id << _INDEX_BITS) | array


def split(addresses: Int64Array) -> tuple[Int64Array, Int64Array]:
    """Takes addresses apart.

    Args:
        addresses: int64 `[count]`.

    Returns:
        int64 `[count]` each: ids of the sources, and indices.
    """
    return addresses >> _INDEX_BITS, addresses & (_MAX_INDEX - 1)
