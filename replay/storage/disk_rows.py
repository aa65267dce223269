"""Rows on disk: constant memory, and crash-safe files."""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from mixer.utils.arrays import Int64Array
from mixer.utils.files import read_json, write_json
from mixer.utils.validation import refusing_damage
from replay.storage.codec import Row, decode, encode
from replay.storage.row_file import RowFile, write_rows, write_whole
from replay.storage.rows import Rows, as_numbers, no_such_row
from replay.storage.segments import NumberSet, Segment, SegmentFiles, merge, neighbourhood

_MANIFEST, _LIVE, _PENDING = "rows.json", "live.int64", "pending.arrow"
_FORMAT = 1
ROWS_PER_SEGMENT = 65_536
_BYTES_PER_SEGMENT = 16 * 2**20


@dataclass(frozen=True)
class Manifest:
    """The state of rows on disk.

    Args:
        segments: The segments.
        next_number: Number of the next row.
        first_pending: Number of the first row that is not in a segment yet.
        pending_bytes: Size of the pending rows, including dropped ones.
        pending: The bytes of the remaining pending rows, by number.
    """

    segments: Sequence[Segment]
    next_number: int
    first_pending: int
    pending_bytes: int
    pending: dict[int, bytes]


def remove_manifest(folder: Path) -> None:
    """Creates the folder of a checkpoint, without a manifest: its content is not valid until one is written."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / _MANIFEST).unlink(missing_ok=True)


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Writes a manifest into the folder of a checkpoint, which has the segments' files already."""

    def write_live(file: BinaryIO) -> None:
        for segment in manifest.segments:
            file.write(segment.live.numbers().astype("<i8").tobytes())

    write_whole(folder / _LIVE, write_live)
    numbers = np.fromiter(manifest.pending, dtype=np.int64, count=len(manifest.pending))
    write_rows(folder / _PENDING, numbers, list(manifest.pending.values()))
    names = [_LIVE, _PENDING, *(segment.name for segment in manifest.segments)]
    content = {
        "format": _FORMAT,
        "next_number": manifest.next_number,
        "first_pending": manifest.first_pending,
        "pending_bytes": manifest.pending_bytes,
        "segments": [
            [segment.first, segment.last, segment.num_rows, segment.num_bytes, len(segment.live)]
            for segment in manifest.segments
        ],
        "files": {name: (folder / name).stat().st_size for name in names},
    }
    write_json(folder / _MANIFEST, content, sealed=True)


def read_manifest(folder: Path) -> Manifest:
    """Reads the manifest of a checkpoint; raises a `ValueError` that names a missing or torn file."""
    path = folder / _MANIFEST
    content = read_json(path)
    if content.get("format") != _FORMAT:
        raise ValueError(f"{path} is not of format {_FORMAT}. Load a checkpoint of this version.")
    with refusing_damage(f"{path}"):
        for name, size in content["files"].items():
            _check_size(folder / name, size)
        segments = _read_segments(folder / _LIVE, content["segments"])
        file = RowFile(folder / _PENDING)
        pending = {number: bytes(file.read(index)) for index, number in enumerate(file.numbers.tolist())}
        return Manifest(segments, content["next_number"], content["first_pending"], content["pending_bytes"], pending)


def _read_segments(path: Path, described: Sequence[Sequence[int]]) -> list[Segment]:
    live = np.fromfile(path, dtype="<i8").astype(np.int64)
    ends = np.cumsum([row[4] for row in described], dtype=np.int64)
    parts = np.split(live, ends[:-1]) if described else []
    return [
        Segment(first, last, num_rows, num_bytes, NumberSet(part))
        for (first, last, num_rows, num_bytes, _), part in zip(described, parts, strict=True)
    ]


def _check_size(path: Path, size: int) -> None:
    if not path.is_file():
        raise ValueError(f"{path} is missing. Load an earlier checkpoint.")
    found = path.stat().st_size
    if found != size:
        raise ValueError(f"{path} is torn: it has {found} bytes instead of {size}. Load an earlier checkpoint.")


class DiskRows(Rows):
    """Rows in files of one segment each.

    A segment is written when it is full, and rewritten when less than half of its rows are still needed. The files
    follow from the sequence of calls alone, so ranks that make the same calls know the same files. A row is written
    about once, and copied a bounded number of times per dropped row.

    Args:
        folder: Folder of the files during the run; empty, unless a checkpoint is loaded next.
        is_writer: Whether this rank writes; other ranks read its files, and hold rows in memory until the files appear.
        rows_per_segment: Number of rows of a full segment; 16 MiB fill a segment too.

    Raises:
        ValueError: If `rows_per_segment` is less than 1.
    """

    def __init__(self, folder: Path | str, is_writer: bool = True, rows_per_segment: int = ROWS_PER_SEGMENT):
        if rows_per_segment < 1:
            raise ValueError(f"rows_per_segment has to be at least 1, not {rows_per_segment}.")
        self._files = SegmentFiles(Path(folder), is_writer)
        self._holds_earlier_run = is_writer and self._files.has_any()
        self._rows_per_segment = rows_per_segment
        self._segments: list[Segment] = []
        # Rows since the last full segment: where they begin, their size with those that were dropped, those that
        # were not. A segment's end depends on nothing else, so that saving does not move it.
        self._next_number, self._first_pending, self._pending_bytes = 0, 0, 0
        self._pending: dict[int, bytes] = {}

    @property
    def next_number(self) -> int:
        """See the base class."""
        return self._next_number

    def append(self, rows: Sequence[Row]) -> Int64Array:
        """See the base class.

        Raises:
            ValueError: If the folder holds rows of an earlier run and no checkpoint was loaded.
        """
        self._refuse_earlier_run()
        encoded = [encode(row) for row in rows]
        first, first_pending = self._next_number, self._first_pending
        for content in encoded:
            self._pending[self._next_number] = content
            self._next_number += 1
            self._pending_bytes += len(content)
            is_full = self._next_number - self._first_pending >= self._rows_per_segment
            if is_full or self._pending_bytes >= _BYTES_PER_SEGMENT:
                self._seal()
        if self._first_pending != first_pending:
            self._files.settle(self._segments)
        return np.arange(first, self._next_number, dtype=np.int64)

    def read(self, numbers: Int64Array) -> list[Row]:
        """See the base class."""
        wanted = as_numbers(numbers, self._next_number)
        rows: list[Any] = [None] * len(wanted)
        for position in np.argsort(wanted, kind="stable").tolist():  # file after file
            rows[position] = decode(self._content(int(wanted[position])))
        return rows

    def drop(self, numbers: Int64Array) -> None:
        """See the base class."""
        self._rewrite_where(self._let_go(numbers), lambda segment: 2 * len(segment.live) < segment.num_rows)

    def erase(self, numbers: Int64Array) -> None:
        """See the base class; checkpoints that have the rows keep them."""
        self._rewrite_where(self._let_go(numbers), lambda segment: segment.num_dropped > 0)
        self._files.remove_replaced()

    def save(self, folder: Path) -> None:
        """See the base class; files of segments are linked, so that little is written."""
        self._refuse_earlier_run()
        remove_manifest(folder)
        self._files.link_to(folder, self._segments)
        state = (self._next_number, self._first_pending, self._pending_bytes, self._pending)
        write_manifest(folder, Manifest(self._segments, *state))

    def load(self, folder: Path) -> None:
        """See the base class; files in the working folder that came after the checkpoint are removed."""
        manifest = read_manifest(folder)
        self._files.take_from(folder, manifest.segments)
        self._segments, self._pending = list(manifest.segments), manifest.pending
        self._next_number, self._first_pending = manifest.next_number, manifest.first_pending
        self._pending_bytes = manifest.pending_bytes
        self._holds_earlier_run = False

    def _seal(self) -> None:
        live = NumberSet(np.fromiter(self._pending, dtype=np.int64, count=len(self._pending)))
        num_rows, last = self._next_number - self._first_pending, self._next_number - 1
        segment = Segment(self._first_pending, last, num_rows, self._pending_bytes, live, self._pending)
        self._segments.append(segment)
        self._first_pending, self._pending_bytes, self._pending = self._next_number, 0, {}
        self._rewrite(len(self._segments) - 1)

    def _rewrite(self, index: int) -> None:
        around = neighbourhood(self._segments, index, self._rows_per_segment, _BYTES_PER_SEGMENT)
        parts = self._segments[around]
        merged = merge(parts)
        self._files.replace(parts, merged)
        self._segments[around] = [merged] if merged.live else []

    def _rewrite_where(self, segments: Sequence[Segment], is_due: Callable[[Segment], bool]) -> None:
        for segment in segments:
            index = self._index_of(segment.first)
            is_here = index >= 0 and self._segments[index] is segment  # a neighbour may have been merged with it
            if is_here and is_due(segment):
                self._rewrite(index)

    def _let_go(self, numbers: Int64Array) -> list[Segment]:
        """Marks rows as dropped.

        Args:
            numbers: int64 `[count]`: which ones.

        Returns:
            The segments that cover them.
        """
        dropped = np.unique(as_numbers(numbers, self._next_number))
        for number in dropped[np.searchsorted(dropped, self._first_pending) :].tolist():
            self._pending.pop(number, None)
        touched = {self._index_of(number) for number in dropped.tolist() if number < self._first_pending} - {-1}
        segments = [self._segments[index] for index in sorted(touched)]
        for segment in segments:
            segment.drop(dropped)
        return segments

    def _content(self, number: int) -> Any:
        if number >= self._first_pending:
            content = self._pending.get(number)
        else:
            index = self._index_of(number)
            is_live = index >= 0 and number in self._segments[index].live
            content = self._files.read(self._segments[index], number) if is_live else None
        if content is None:
            raise no_such_row(number, self._next_number)
        return content

    def _index_of(self, number: int) -> int:
        """Finds the segment that covers a number; -1 if none can."""
        return bisect_right(self._segments, number, key=lambda segment: segment.first) - 1

    def _refuse_earlier_run(self) -> None:
        if self._holds_earlier_run:
            raise ValueError(
                f"The folder {self._files.folder} holds rows of an earlier run. Give an empty folder, or load a "
                "checkpoint of that run before adding rows."
            )
