"""Rows: where contents and payloads of a buffer's entries lie, by a number that never changes."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from mixer.utils.arrays import Int64Array


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
