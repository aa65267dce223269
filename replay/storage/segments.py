"""Segments of rows on disk: live rows, and rewriting of files."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mixer.utils.arrays import Int64Array
from mixer.utils.files import WriteError, sync_to_disk, writing
from replay.storage.row_file import TEMPORARY_SUFFIX, RowFile, link_or_copy, write_rows

_NAME = re.compile(r"rows-(\d+)-(\d+)-\d+\.arrow")
SEGMENTS = "rows-*.arrow"
_MOST_OPEN = 256


@dataclass(eq=False)
class Segment:
    """Rows that lie in one file, as every rank knows them without looking into it.

    Args:
        first: The first number that it covers.
        last: The last one; no other segment covers numbers between.
        num_rows: Number of rows in its file.
        num_bytes: Their size, about.
        live: `[num_live]`: numbers of the rows that were not dropped, ascending; held as the smallest type of integers.
        held: Rows that are not known to be in a file yet.
    """

    first: int
    last: int
    num_rows: int
    num_bytes: int
    live: NDArray[Any]
    held: dict[int, bytes] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.live = self.live.astype(np.min_scalar_type(self.last))

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

    def has(self, number: int) -> bool:
        """Whether a row is one of the live ones."""
        index = self.live.searchsorted(self.live.dtype.type(min(number, self.last)))
        return bool(index < len(self.live) and self.live[index] == number)

    def drop(self, numbers: Int64Array) -> None:
        """Drops rows, int64 `[count]`, ascending and distinct; those of other segments are ignored."""
        here = numbers[np.searchsorted(numbers, self.first) : np.searchsorted(numbers, self.last, side="right")]
        self.live = self.live[~np.isin(self.live, here)]
        for number in here.tolist():
            self.held.pop(number, None)


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

    def size(segment: Segment) -> Int64Array:
        return np.array([len(segment.live), len(segment.live), segment.num_live_bytes])

    start, stop, chosen = index, index + 1, segments[index]
    room = np.array([chosen.num_dropped, most_rows - len(chosen.live), most_bytes - chosen.num_live_bytes])
    while start > 0 and (size(segments[start - 1]) <= room).all():
        start -= 1
        room -= size(segments[start])
    while stop < len(segments) and (size(segments[stop]) <= room).all():
        room -= size(segments[stop])
        stop += 1
    return slice(start, stop)


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
        self.open_files: dict[str, RowFile] = {}  # the last read ones, newest last
        # Files that were replaced, of late and before that.
        self._replaced: list[Path] = []
        self._doomed: list[Path] = []
        if is_writer:
            folder.mkdir(parents=True, exist_ok=True)
            for path in folder.glob(f"{SEGMENTS}.*{TEMPORARY_SUFFIX}"):
                path.unlink(missing_ok=True)

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
                row = self._opened(path).find(number)
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
        if len(merged.live):
            rows = ((number, self.read(part, number)) for part in parts for number in map(int, part.live))
            try:
                write_rows(self.folder / merged.name, rows)
            except WriteError as error:
                if isinstance(error.__cause__, FileNotFoundError) and error.__cause__.errno is None:
                    raise error.__cause__ from None  # a row's own file is missing
                raise
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
        self.open_files.clear()
        if self.is_writer:
            sync_to_disk(self.folder)

    def link_to(self, checkpoint: Path, segments: Sequence[Segment]) -> None:
        """Gives files of segments a second name in a checkpoint, in place of any that are there.

        Args:
            checkpoint: The checkpoint's folder.
            segments: The segments.
        """
        self._remove(list(checkpoint.glob(SEGMENTS)))
        for segment in segments:
            link_or_copy(self.folder / segment.name, checkpoint / segment.name)
        sync_to_disk(checkpoint)

    def take_from(self, checkpoint: Path, segments: Sequence[Segment]) -> None:
        """Makes the folder what it was at a checkpoint; who does not write reads there what is not here yet.

        Args:
            checkpoint: The checkpoint's folder.
            segments: The segments of then.
        """
        self.open_files.clear()
        self._doomed, self._replaced = [], []
        if self.is_writer:
            self._remove(list(self.folder.glob(SEGMENTS)))
            for segment in segments:
                link_or_copy(checkpoint / segment.name, self.folder / segment.name)
            sync_to_disk(self.folder)
        else:
            self._checkpoint = checkpoint

    def _opened(self, path: str) -> RowFile:
        """Opens a file, or returns the open one, even if another file has its name by now."""
        file = self.open_files.pop(path, None) or RowFile(Path(path))
        self.open_files[path] = file
        if len(self.open_files) > _MOST_OPEN:
            del self.open_files[next(iter(self.open_files))]
        return file

    def _places(self, segment: Segment, number: int) -> Iterator[str]:
        yield f"{self.folder}/{segment.name}"
        if not self.is_writer:
            for folder in filter(None, (self.folder, self._checkpoint, self.folder)):
                for path in sorted(folder.glob(SEGMENTS)):
                    name = _NAME.fullmatch(path.name)
                    if name and int(name[1]) <= number <= int(name[2]):
                        yield str(path)

    def _remove(self, paths: Sequence[Path]) -> None:
        for path in paths:
            with writing(path):
                path.unlink(missing_ok=True)
            self.open_files.pop(f"{self.folder}/{path.name}", None)
