"""Rows of a buffer by a number that never changes, in memory."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

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


@dataclass(frozen=True)
class Row:
    """What is kept of one sample.

    Args:
        sample: The sample as its data set gave it; `None` where only a reference to it is remembered.
        payload: What a method needs beside it, such as `"logits"`; arrays of any shape and type.
    """

    sample: Any = None
    payload: Mapping[str, NDArray[Any]] = field(default_factory=dict)


class Rows(ABC):
    """Rows that can be read by number.

    Numbers are given in order, 0, 1, 2, and so on, and never given again. Every rank adds the same rows.
    """

    @property
    @abstractmethod
    def next_number(self) -> int:
        """The number that the next row will have."""

    @abstractmethod
    def append(self, rows: Sequence[Row]) -> Int64Array:
        """Adds rows.

        Args:
            rows: The rows.

        Returns:
            int64 `[count]`: their numbers.

        Raises:
            TypeError: If something of a row cannot be kept; the row's field is named.
        """

    @abstractmethod
    def read(self, numbers: Int64Array) -> list[Row]:
        """Reads rows.

        Args:
            numbers: int64 `[count]`: which ones, in any order.

        Returns:
            The rows, in that order; tensors and arrays are copies of their own.

        Raises:
            KeyError: If there is no such row, or it was dropped.
        """

    @abstractmethod
    def drop(self, numbers: Int64Array) -> None:
        """Lets go of rows that nobody will read again; their room is made free in time.

        Args:
            numbers: int64 `[count]`: which ones.
        """

    @abstractmethod
    def erase(self, numbers: Int64Array) -> None:
        """Drops rows and makes sure at once that nothing of them is left, on disk neither.

        Args:
            numbers: int64 `[count]`: which ones.
        """

    @abstractmethod
    def save(self, folder: Path) -> None:
        """Writes all rows that were not dropped into a folder of a checkpoint; one rank does.

        Args:
            folder: The folder; it is made.
        """

    @abstractmethod
    def load(self, folder: Path) -> None:
        """Takes up what was saved, in place of what is there; every rank does.

        Args:
            folder: The folder.

        Raises:
            ValueError: If a file is missing or torn; it is named.
        """
