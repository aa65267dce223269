"""Segments of rows on disk: live rows, and rewriting of files."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mixer.utils.arrays import Int64Array
from mixer.utils.files import writing
from replay.storage.row_file import TEMPORARY_SUFFIX, OpenFiles, link_or_copy, sync_folder, write_rows

_NAME = re.compile(r"rows-(\d+)-(\d+)-\d+\.arrow")
SEGMENTS = "rows-*.arrow"


class NumberSet:
    """A set of integers that only shrinks.

    Stored as a bit per number between the first and the last, or, if that is smaller, as 1, 2, 4 or 8 bytes per member.

    Args:
        numbers: int64 `[count]`, ascending.
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


class SegmentFiles:
    """Files of segments.

    Ranks know of the same segments but are not at the same place at the same time. Who does not write may look for a
    file that is not written yet, and takes the row from the ones that it will replace; it may also look for one that
    was just replaced, so that those stay a while.

    Args:
        folder: The folder.
        is_writer: Whether this rank writes.
    """

    def __init__(self, folder: Path, is_writer: bool):
        self.folder, self.is_writer = folder, is_writer
        self._checkpoint: Path | None = None
        self._open = OpenFiles()
        # Files that were replaced, of late and before that.
        self._replaced: list[Path] = []
        self._doomed: list[Path] = []
        if is_writer:
            folder.mkdir(parents=True, exist_ok=True)
            for path in folder.glob(f"{SEGMENTS}.*{TEMPORARY_SUFFIX}"):
                path.unlink(missing_ok=True)

    def has_any(self) -> bool:
        """Says whether there is any segment's file.

        Returns:
            Whether there is.
        """
        return any(self.folder.glob(SEGMENTS))

    def read(self, segment: Segment, number: int) -> Any:
        """Reads a row.

        Args:
            segment: Its segment.
            number: Its number; it is one of the live rows.

        Returns:
            A buffer of its bytes.

        Raises:
            FileNotFoundError: If the file is not there.
        """
        if number in segment.held:
            return segment.held[number]
        for path in self._places(segment, number):
            try:
                row = self._open.open(path).find(number)
            except FileNotFoundError:
                continue
            if row is not None:
                return row
        raise FileNotFoundError(
            f"No file in {self.folder} holds row {number}, which should be in {segment.name}. All ranks that do not "
            "write need to see the folder of one that does; leave its files alone during a run."
        )

    def replace(self, parts: Sequence[Segment], merged: Segment) -> None:
        """Writes a segment's file, if this rank writes; those of which it was made go in a while.

        Args:
            parts: The segments of which it was made.
            merged: The segment; one without rows has no file.
        """
        if not self.is_writer:
            return
        if merged.live:
            rows = [self.read(part, number) for part in parts for number in part.live.numbers().tolist()]
            write_rows(self.folder / merged.name, merged.live.numbers(), rows)
            merged.held = {}
        self._replaced += [self.folder / part.name for part in parts if part.name != merged.name]

    def settle(self, segments: Sequence[Segment]) -> None:
        """Removes files that were replaced a while ago, and lets go of rows that have come to be in a file since.

        Args:
            segments: All segments.
        """
        self._remove(self._doomed)
        self._doomed, self._replaced = self._replaced, []
        for segment in segments:
            if segment.held and (self.folder / segment.name).is_file():
                segment.held = {}

    def remove_replaced(self) -> None:
        """Removes all files that were replaced at once."""
        self._remove(self._doomed + self._replaced)
        self._doomed, self._replaced = [], []
        self._open.close_all()
        if self.is_writer:
            sync_folder(self.folder)

    def link_to(self, checkpoint: Path, segments: Sequence[Segment]) -> None:
        """Gives files of segments a second name in a checkpoint, in place of any that are there.

        Args:
            checkpoint: The checkpoint's folder.
            segments: The segments.
        """
        self._remove(list(checkpoint.glob(SEGMENTS)))
        for segment in segments:
            link_or_copy(self.folder / segment.name, checkpoint / segment.name)
        sync_folder(checkpoint)

    def take_from(self, checkpoint: Path, segments: Sequence[Segment]) -> None:
        """Makes the folder what it was at a checkpoint; who does not write reads there what is not here yet.

        Args:
            checkpoint: The checkpoint's folder.
            segments: The segments of then.
        """
        self._open.close_all()
        self._doomed, self._replaced = [], []
        if self.is_writer:
            self._remove(list(self.folder.glob(SEGMENTS)))
            for segment in segments:
                link_or_copy(checkpoint / segment.name, self.folder / segment.name)
            sync_folder(self.folder)
        else:
            self._checkpoint = checkpoint

    def _places(self, segment: Segment, number: int) -> Iterator[str]:
        yield f"{self.folder}/{segment.name}"
        if not self.is_writer:
            for folder in filter(None, (self.folder, self._checkpoint, self.folder)):
                yield from (str(path) for path in sorted(folder.glob(SEGMENTS)) if covers(path.name, number))

    def _remove(self, paths: Sequence[Path]) -> None:
        for path in paths:
            with writing(path):
                path.unlink(missing_ok=True)
            self._open.close(f"{self.folder}/{path.name}")
