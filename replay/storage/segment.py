"""What is known of a segment: which of its rows are still wanted, and which segments are written anew as one."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Int64Array = NDArray[np.int64]

_NAME = re.compile(r"rows-(\d+)-(\d+)-\d+\.arrow")


@dataclass(eq=False)
class Segment:
    """Rows that lie in one file, as every rank knows them without looking into it.

    The live rows take 8 bytes each: as much as a buffer's own note which row an entry has, and nothing for those that
    are gone, however long a run is.

    Args:
        first: The first number that it covers.
        last: The last one; no other segment covers numbers between.
        num_rows: Number of rows in its file.
        num_bytes: Their size, about.
        live: int64 `[num_live]`, ascending: the rows that were not dropped.
        held: Rows that are not known to be in a file yet.
    """

    first: int
    last: int
    num_rows: int
    num_bytes: int
    live: Int64Array
    held: dict[int, bytes] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Name of its file: a segment only ever loses rows or grows, so that no two contents share a name."""
        return f"rows-{self.first:012d}-{self.last:012d}-{self.num_rows}.arrow"

    @property
    def num_dropped(self) -> int:
        """Number of rows in its file that are not wanted any more."""
        return self.num_rows - self.live.size

    @property
    def num_live_bytes(self) -> int:
        """Size of the live rows, about."""
        return self.num_bytes * self.live.size // self.num_rows

    def has(self, number: int) -> bool:
        """Says whether a row can be read.

        Args:
            number: Its number.

        Returns:
            Whether it is one of the live rows.
        """
        index = int(np.searchsorted(self.live, number))
        return index < self.live.size and bool(self.live[index] == number)

    def drop(self, numbers: Int64Array) -> None:
        """Lets go of rows.

        Args:
            numbers: int64 `[count]`, ascending: which ones, if they are here.
        """
        here = numbers[np.searchsorted(numbers, self.first) : np.searchsorted(numbers, self.last, side="right")]
        places = np.searchsorted(self.live, here)
        are_here = places < self.live.size
        are_here[are_here] = self.live[places[are_here]] == here[are_here]
        self.live = np.delete(self.live, places[are_here])
        if self.held:
            for number in here.tolist():
                self.held.pop(number, None)


def merge(parts: Sequence[Segment]) -> Segment:
    """Makes one segment of the live rows of neighbours.

    Args:
        parts: The neighbours, at least one.

    Returns:
        The segment, whose file has still to be written.
    """
    live = np.concatenate([part.live for part in parts])
    num_bytes = sum(part.num_live_bytes for part in parts)
    held = {number: row for part in parts for number, row in part.held.items()}
    return Segment(parts[0].first, parts[-1].last, live.size, num_bytes, live, held)


def neighbourhood(segments: Sequence[Segment], index: int, most_rows: int, most_bytes: int) -> slice:
    """Says which segments are written anew together.

    No more rows of neighbours are copied than this one has dropped: so a row is copied a bounded number of times for
    each that was dropped.

    Args:
        segments: All segments.
        index: The one that has to be written anew.
        most_rows: Number of rows of a full segment.
        most_bytes: Size of a full segment.

    Returns:
        The place of this one and of the neighbours that fit into a segment with it.
    """
    start, stop, chosen = index, index + 1, segments[index]
    credit, num_rows, num_bytes = chosen.num_dropped, chosen.live.size, chosen.num_live_bytes

    def takes(other: int) -> bool:
        nonlocal credit, num_rows, num_bytes
        if not 0 <= other < len(segments):
            return False
        size, other_bytes = segments[other].live.size, segments[other].num_live_bytes
        if size > credit or num_rows + size > most_rows or num_bytes + other_bytes > most_bytes:
            return False
        credit, num_rows, num_bytes = credit - size, num_rows + size, num_bytes + other_bytes
        return True

    while takes(start - 1):
        start -= 1
    while takes(stop):
        stop += 1
    return slice(start, stop)


def covers(name: str, number: int) -> bool:
    """Says whether a file may hold a row.

    Args:
        name: The file's name.
        number: The row.

    Returns:
        Whether it is a segment's file, and of one that covers the number.
    """
    match = _NAME.fullmatch(name)
    return match is not None and int(match[1]) <= number <= int(match[2])
