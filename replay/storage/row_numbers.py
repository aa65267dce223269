"""Checks of row numbers."""

from typing import Any

import numpy as np

from mixer.utils.arrays import Int64Array


def as_numbers(numbers: Any, next_number: int) -> Int64Array:
    """Takes numbers of rows.

    Args:
        numbers: Whole numbers `[count]`.
        next_number: The number that the next row will have.

    Returns:
        int64 `[count]`: the numbers.

    Raises:
        KeyError: If one of them was never given.
    """
    array = np.asarray(numbers, dtype=np.int64).reshape(-1)
    outside = array[(array < 0) | (array >= next_number)]
    if outside.size:
        raise no_such_row(int(outside[0]), next_number)
    return array


def no_such_row(number: int, next_number: int) -> KeyError:
    """Says that a row is not there.

    Args:
        number: Its number.
        next_number: The number that the next row will have.

    Returns:
        The error.
    """
    if 0 <= number < next_number:
        return KeyError(f"Row {number} was dropped. Read rows before they are dropped, or keep them.")
    return KeyError(f"There is no row {number}: rows 0 to {next_number - 1} were added so far.")
