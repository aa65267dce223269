"""Rows in memory."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from mixer.utils.arrays import Int64Array
from replay.storage.codec import decode, encode
from replay.storage.row_file import RowFile, write_rows
from replay.storage.rows import Row, Rows, as_numbers, no_such_row

_FILE = "rows.arrow"


class MemoryRows(Rows):
    """Rows in memory, encoded: so they are copies when they come and when they go, and fail as those on disk do."""

    def __init__(self) -> None:
        self._rows: dict[int, bytes] = {}
        self._next_number = 0

    @property
    def next_number(self) -> int:
        """See the base class."""
        return self._next_number

    def append(self, rows: Sequence[Row]) -> Int64Array:
        """See the base class."""
        encoded = [encode(row) for row in rows]
        numbers = np.arange(self._next_number, self._next_number + len(encoded), dtype=np.int64)
        self._rows.update(zip(numbers.tolist(), encoded, strict=True))
        self._next_number += len(encoded)
        return numbers

    def read(self, numbers: Int64Array) -> list[Row]:
        """See the base class."""
        wanted = as_numbers(numbers, self._next_number).tolist()
        try:
            return [decode(self._rows[number]) for number in wanted]
        except KeyError as error:
            raise no_such_row(error.args[0], self._next_number) from None

    def drop(self, numbers: Int64Array) -> None:
        """See the base class."""
        for number in as_numbers(numbers, self._next_number).tolist():
            self._rows.pop(number, None)

    def erase(self, numbers: Int64Array) -> None:
        """See the base class."""
        self.drop(numbers)

    def save(self, folder: Path) -> None:
        """See the base class."""
        folder.mkdir(parents=True, exist_ok=True)
        numbers = np.fromiter(self._rows, dtype=np.int64, count=len(self._rows))
        write_rows(folder / _FILE, numbers, list(self._rows.values()), self._next_number)

    def load(self, folder: Path) -> None:
        """See the base class."""
        path = folder / _FILE
        try:
            file = RowFile(path)
        except FileNotFoundError:
            raise ValueError(f"{path} is missing. Load a checkpoint whose rows were kept in memory.") from None
        if file.numbers.max(initial=-1) >= file.next_number:
            reason = f"it has rows beyond its next number, {file.next_number}"
            raise ValueError(f"{path} is torn ({reason}). Load an earlier checkpoint.")
        self._rows = {number: bytes(file.read(index)) for index, number in enumerate(file.numbers.tolist())}
        self._next_number = file.next_number
