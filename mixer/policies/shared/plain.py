"""Arrays with gaps as plain data."""

import reprlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from mixer.utils.arrays import FloatArray


def to_plain(values: FloatArray) -> Any:
    """Gives an array as lists that JSON can hold.

    Args:
        values: Any shape; finite, or NaN for a gap.

    Returns:
        Nested lists, `None` for a gap.
    """
    plain = values.astype(object)
    plain[np.isnan(values)] = None
    return plain.tolist()


def from_plain(values: Sequence[Any], *shape: int) -> FloatArray:
    """Takes an array from lists.

    Args:
        values: What `to_plain` gave.
        *shape: The array's shape, which lists without elements do not tell.

    Returns:
        float64 of that shape, NaN for a gap.
    """
    try:
        return np.array(values, dtype=np.float64).reshape(shape)
    except (ValueError, TypeError, OverflowError):
        found = reprlib.repr(values)
        raise ValueError(f"lists of numbers of the shape {list(shape)} must be saved, but {found} was") from None
