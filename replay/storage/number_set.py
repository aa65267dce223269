"""Sets of row numbers in little memory."""

import numpy as np
from numpy.typing import NDArray

from mixer.utils.arrays import Int64Array


class NumberSet:
    """A set of whole numbers that only ever loses some.

    A bit for each number between the first and the last; where few of these are in the set, 1, 2, 4 or 8 bytes for
    each that is, as its distance from the first needs them. What is less is taken.

    Args:
        numbers: int64 `[count]`, ascending: the numbers.
    """

    def __init__(self, numbers: Int64Array):
        self._size = len(numbers)
        self._first = int(numbers[0]) if self._size else 0
        self._span = int(numbers[-1]) - self._first + 1 if self._size else 0
        self._offsets = (numbers - self._first).astype(np.min_scalar_type(self._span))
        self._bits: NDArray[np.uint8] | None = None
        if self._span <= 8 * self._offsets.nbytes:
            are_here = np.zeros(self._span, dtype=np.bool_)
            are_here[self._offsets] = True
            self._bits, self._offsets = np.packbits(are_here, bitorder="little"), self._offsets[:0].copy()

    def __len__(self) -> int:
        return self._size

    def __contains__(self, number: int) -> bool:
        offset = number - self._first
        if not 0 <= offset < self._span:
            return False
        if self._bits is not None:
            return bool(int(self._bits[offset >> 3]) >> (offset & 7) & 1)
        index = self._offsets.searchsorted(self._offsets.dtype.type(offset))
        return bool(index < self._size and self._offsets[index] == offset)

    @property
    def num_bytes(self) -> int:
        """Memory that the numbers take."""
        return self._offsets.nbytes + (0 if self._bits is None else self._bits.nbytes)

    def numbers(self) -> Int64Array:
        """Gives the numbers.

        Returns:
            int64 `[count]`, ascending.
        """
        if self._bits is None:
            return self._offsets.astype(np.int64) + self._first
        return np.flatnonzero(np.unpackbits(self._bits, bitorder="little")) + self._first

    def remove(self, numbers: Int64Array) -> None:
        """Takes numbers out.

        Args:
            numbers: int64 `[count]`, all different: which ones, if they are here.
        """
        offsets = numbers - self._first
        offsets = offsets[(offsets >= 0) & (offsets < self._span)]
        if self._bits is None:
            self._offsets = np.setdiff1d(self._offsets, offsets.astype(self._offsets.dtype), assume_unique=True)
            self._size = len(self._offsets)
            return
        places, masks = offsets >> 3, np.left_shift(1, offsets & 7).astype(np.uint8)
        self._size -= int(np.count_nonzero(self._bits[places] & masks))
        np.bitwise_and.at(self._bits, places, ~masks)
