"""What is known of a segment: which of its rows are still wanted, and which segments are written anew as one."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from mixer.utils.arrays import Int64Array
from replay.storage.number_set import NumberSet

_NAME = re.compile(r"rows-(\d+)-(\d+)-\d+\.arrow")


@dataclass(eq=False)
class Segment:
    """Rows that lie in one file, as every rank knows them without looking into it.

    Which rows are live takes about a bit a row of its file, a few bits where many between them are gone, and 4 bytes at
    most in one that covers less than 2^32 numbers; it is known without the file, which may come late or be gone.

    Args:
        first: The first number that it covers.
        last: The last one; no other segment covers numbers between.
        num_rows: Number of rows in its file.
        num_bytes: Their size, about.
        live: The rows that were not dropped.
        held: Rows that are not known to be in a file yet.
    """

    first: int
    last: int
    num_rows: int
    num_bytes: int
    live: NumberSet
    held: dict[int, bytes] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Name of its file: a segment only ever loses rows or grows, so that no two contents share a name."""
        return f"rows-{self.first:012d}-{self.last:012d}-{self.num_rows}.arrow"

    @property
    def num_dropped(self) -> int:
        """Number of rows in its file that are not wanted any more."""
        return self.num_rows - len(self.live)

    @property
    def num_live_bytes(self) -> int:
        """Size of the live rows, about."""
        return self.num_bytes * len(self.live) // self.num_rows

    def drop(self, numbers: Int64Array) -> None:
        """Lets go of rows.

        Args:
            numbers: int64 `[count]`, ascending, all different: which ones, if they are here.
        """
        here = numbers[np.searchsorted(numbers, self.first) : np.searchsorted(numbers, self.last, side="right")]
        self.live.remove(here)
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
    live = NumberSet(np.concatenate([part.live.numbers() for part in parts]))
    num_bytes = sum(part.num_live_bytes for part in parts)
    held = {number: row for part in parts for number, row in part.held.items()}
    return Segment(parts[0].first, parts[-1].last, len(live), num_bytes, live, held)


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
    credit, num_rows, num_bytes = chosen.num_dropped, len(chosen.live), chosen.num_live_bytes

    def takes(other: int) -> bool:
        nonlocal credit, num_rows, num_bytes
        if not 0 <= other < len(segments):
            return False
        size, other_bytes = len(segments[other].live), segments[other].num_live_bytes
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
