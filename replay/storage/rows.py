"""Rows of a buffer by number: the interface, and rows in memory."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mixer.utils.arrays import Int64Array
from replay.storage.codec import EncodedRow, Row, decode, encode
from replay.storage.row_file import damaged_file, saved_rows, write_rows

_FILE = "rows.arrow"


class Rows(ABC):
    """Rows that can be read by number.

    Numbers are assigned in order, 0, 1, 2, and so on, and never reused. Every rank adds the same rows.
    """

    next_number: int = 0  # of the next row

    def check(self, numbers: Any) -> Int64Array:
        """Converts row numbers to int64 `[count]`; raises a `KeyError` for one that was never assigned."""
        array = np.asarray(numbers, dtype=np.int64).reshape(-1)
        outside = array[(array < 0) | (array >= self.next_number)]
        if outside.size:
            raise KeyError(f"There is no row {outside[0]}: rows 0 to {self.next_number - 1} were added so far.")
        return array

    def append(self, rows: Sequence[Row]) -> Int64Array:
        """Adds rows and returns their numbers, int64 `[count]`; raises a `TypeError` for an unsupported field."""
        first, contents = self.next_number, [encode(row) for row in rows]
        self.add(contents)
        return np.arange(first, self.next_number, dtype=np.int64)

    def read(self, numbers: Int64Array) -> list[Row]:
        """Reads rows.

        Args:
            numbers: int64 `[count]`, in any order.

        Returns:
            The rows, in that order; tensors and arrays are copies.

        Raises:
            KeyError: If a row does not exist or was dropped.
        """
        rows = []
        for number in self.check(numbers).tolist():
            content = self.content(number)
            if content is None:
                raise KeyError(f"Row {number} was dropped. Read rows before they are dropped, or keep them.")
            rows.append(decode(content))
        return rows

    @abstractmethod
    def add(self, contents: Iterable[EncodedRow]) -> None:
        """Adds encoded rows, and counts `next_number` on."""

    @abstractmethod
    def content(self, number: int) -> EncodedRow | None:
        """Returns an encoded row; `None` if it was dropped."""

    @abstractmethod
    def drop(self, numbers: Int64Array) -> None:
        """Drops rows that will not be read again; their space is freed in time."""

    def erase(self, numbers: Int64Array) -> None:
        """Drops rows and deletes their data at once, also on disk."""
        self.drop(numbers)

    @abstractmethod
    def save(self, folder: Path) -> None:
        """Writes all remaining rows into the folder of a checkpoint; one rank has to call it."""

    @abstractmethod
    def load(self, folder: Path, wanted: Iterable[int]) -> None:
        """Loads saved rows in place of the present ones, on every rank.

        Args:
            folder: The folder that `save` wrote.
            wanted: Numbers of the rows; others count as dropped.

        Raises:
            ValueError: If a file is damaged, or a wanted row is not there. The present rows stay then.
        """


class MemoryRows(Rows):
    """Rows in memory, encoded: they are copied on both ways, and fail exactly as rows on disk do."""

    def __init__(self) -> None:
        self._rows: dict[int, EncodedRow] = {}

    def add(self, contents: Iterable[EncodedRow]) -> None:
        """See the base class."""
        for content in contents:
            self._rows[self.next_number] = content
            self.next_number += 1

    def content(self, number: int) -> EncodedRow | None:
        """See the base class."""
        return self._rows.get(number)

    def drop(self, numbers: Int64Array) -> None:
        """See the base class."""
        for number in self.check(numbers).tolist():
            self._rows.pop(number, None)

    def save(self, folder: Path) -> None:
        """See the base class."""
        folder.mkdir(parents=True, exist_ok=True)
        write_rows(folder / _FILE, self._rows.items(), self.next_number)

    def load(self, folder: Path, wanted: Iterable[int]) -> None:
        """See the base class."""
        path, numbers = folder / _FILE, np.unique(np.fromiter(wanted, np.int64))
        file = saved_rows(path, numbers)
        if file.numbers.max(initial=-1) >= file.next_number:
            raise damaged_file(str(path), f"is torn (it has rows beyond its next number, {file.next_number})")
        self._rows = file.read_all(numbers)
        self.next_number = file.next_number
