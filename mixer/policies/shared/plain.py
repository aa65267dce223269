"""Arrays with missing values as JSON-compatible data."""

import reprlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from mixer.utils.arrays import FloatArray


def to_plain(values: FloatArray) -> Any:
    """Converts an array to nested lists, with `None` for NaN."""
    plain = values.astype(object)
    plain[np.isnan(values)] = None
    return plain.tolist()


def from_plain(values: Sequence[Any], *shape: int) -> FloatArray:
    """Converts nested lists of `to_plain` to a float64 array of the shape, which empty lists do not determine."""
    try:
        return np.array(values, dtype=np.float64).reshape(shape)
    except (ValueError, TypeError, OverflowError):
        raise ValueError(
            f"the saved state must have lists of numbers of the shape {list(shape)}, got {reprlib.repr(values)}."
        ) from None
