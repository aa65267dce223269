"""Rows on disk: constant memory, and crash-safe files."""

from bisect import bisect_right
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mixer.utils.arrays import Int64Array
from mixer.utils.files import other_version, read_json, write_json
from mixer.utils.validation import refusing_damage
from replay.storage.row_file import RowFile, whole_file, write_rows
from replay.storage.rows import Rows, check_are_there
from replay.storage.segments import SEGMENTS, Segment, SegmentFiles, neighbourhood

_MANIFEST, _LIVE, _PENDING = "rows.json", "live.int64", "pending.arrow"
_FORMAT = 2
ROWS_PER_SEGMENT = 65_536
_BYTES_PER_SEGMENT = 16 * 2**20


def read_manifest(folder: Path) -> tuple[tuple[int, int, int], list[Segment], dict[int, bytes]]:
    """Reads the manifest of a checkpoint.

    Returns:
        The numbers of the next row and of the first pending one, and the size of the pending ones; the segments; and
        the pending rows.

    Raises:
        ValueError: If a file is missing or torn; it is named.
    """
    path = folder / _MANIFEST
    content = read_json(path)
    if content.get("format") not in (1, _FORMAT):
        raise ValueError(f"{other_version(str(path), content.get('format'), _FORMAT)}.")
    with refusing_damage(f"{path}"):
        for name, size in content["files"].items():
            if not (folder / name).is_file():
                raise ValueError(f"{folder / name} is missing. Load an earlier checkpoint.")
            found = (folder / name).stat().st_size
            if found != size:
                reason = f"it has {found} bytes instead of {size}"
                raise ValueError(f"{folder / name} is torn: {reason}. Load an earlier checkpoint.")
        live = np.fromfile(folder / _LIVE, dtype="<i8").astype(np.int64)
        ends = np.cumsum([row[4] for row in content["segments"]], dtype=np.int64)
        parts = zip(content["segments"], np.split(live, ends), strict=False)  # nothing is behind the last end
        segments = [Segment(first, last, rows, size, part) for (first, last, rows, size, _), part in parts]
        file = RowFile(folder / _PENDING)
        pending = {number: bytes(file.read(index)) for index, number in enumerate(file.numbers.tolist())}
        return (content["next_number"], content["first_pending"], content["pending_bytes"]), segments, pending


class DiskRows(Rows):
    """Rows in files of one segment each.

    A segment is written when it is full, and rewritten when less than half of its rows are still needed. The files
    follow from the sequence of calls alone, so ranks that make the same calls know the same files. A row is written
    about once, and copied a bounded number of times per dropped row.

    Args:
        folder: Folder of the files during the run; empty, unless a checkpoint is loaded next.
        is_writer: Whether this rank writes; other ranks read its files, and hold rows in memory until the files appear.
        rows_per_segment: Number of rows of a full segment; 16 MiB fill a segment too.
    """

    def __init__(self, folder: Path | str, is_writer: bool = True, rows_per_segment: int = ROWS_PER_SEGMENT):
        self._files = SegmentFiles(Path(folder), is_writer)
        self._holds_earlier_run = is_writer and any(self._files.folder.glob(SEGMENTS))
        self._rows_per_segment = rows_per_segment
        self.segments: list[Segment] = []
        # Rows since the last full segment: the number of the first, their size with those that were dropped, and those
        # that were not. A segment's end depends on nothing else, so that saving does not move it.
        self._first_pending, self._pending_bytes = 0, 0
        self._pending: dict[int, bytes] = {}

    def add(self, contents: Sequence[bytes]) -> None:
        """See the base class.

        Raises:
            ValueError: If the folder holds rows of an earlier run and no checkpoint was loaded.
        """
        self._refuse_earlier_run()
        first_pending = self._first_pending
        for content in contents:
            self._pending[self.next_number] = content
            self.next_number += 1
            self._pending_bytes += len(content)
            is_full = self.next_number - self._first_pending >= self._rows_per_segment
            if is_full or self._pending_bytes >= _BYTES_PER_SEGMENT:
                self._seal()
        if self._first_pending != first_pending:
            self._files.settle(self.segments)

    def content(self, number: int) -> Any:
        """See the base class."""
        if number >= self._first_pending:
            return self._pending.get(number)
        index = self._index_of(number)
        is_live = index >= 0 and self.segments[index].has(number)
        return self._files.read(self.segments[index], number) if is_live else None

    def drop(self, numbers: Int64Array) -> None:
        """See the base class."""
        self._let_go(numbers, least_live=0.5)

    def erase(self, numbers: Int64Array) -> None:
        """See the base class; checkpoints that have the rows keep them."""
        self._let_go(numbers, least_live=1.0)
        self._files.remove_replaced()

    def save(self, folder: Path) -> None:
        """See the base class; files of segments are linked, so that little is written."""
        self._refuse_earlier_run()
        folder.mkdir(parents=True, exist_ok=True)
        (folder / _MANIFEST).unlink(missing_ok=True)  # the content of the folder is not valid until one is written
        self._files.link_to(folder, self.segments)
        with whole_file(folder / _LIVE) as file:
            for segment in self.segments:
                file.write(segment.live.astype("<i8").tobytes())
        write_rows(folder / _PENDING, self._pending.items())
        names = [_LIVE, _PENDING, *(segment.name for segment in self.segments)]
        content = {
            "format": _FORMAT,
            "next_number": self.next_number,
            "first_pending": self._first_pending,
            "pending_bytes": self._pending_bytes,
            "segments": [[one.first, one.last, one.num_rows, one.num_bytes, len(one.live)] for one in self.segments],
            "files": {name: (folder / name).stat().st_size for name in names},
        }
        write_json(folder / _MANIFEST, content, sealed=True)

    def load(self, folder: Path, wanted: Int64Array | Sequence[int] = ()) -> None:
        """See the base class; files in the working folder that came after the checkpoint are removed."""
        counters, segments, pending = read_manifest(folder)
        there = [*(segment.live for segment in segments), np.fromiter(pending, np.int64)]
        check_are_there(wanted, np.concatenate(there, dtype=np.int64), folder)
        self._files.take_from(folder, segments)
        self.next_number, self._first_pending, self._pending_bytes = counters
        self.segments, self._pending = segments, pending
        self._holds_earlier_run = False

    def _seal(self) -> None:
        live = np.fromiter(self._pending, dtype=np.int64, count=len(self._pending))
        num_rows, last = self.next_number - self._first_pending, self.next_number - 1
        segment = Segment(self._first_pending, last, num_rows, self._pending_bytes, live, self._pending)
        self.segments.append(segment)
        self._first_pending, self._pending_bytes, self._pending = self.next_number, 0, {}
        self._rewrite(len(self.segments) - 1)

    def _rewrite(self, index: int) -> None:
        around = neighbourhood(self.segments, index, self._rows_per_segment, _BYTES_PER_SEGMENT)
        parts = self.segments[around]
        live = np.concatenate([part.live for part in parts])
        num_bytes = sum(part.num_live_bytes for part in parts)
        held = {number: row for part in parts for number, row in part.held.items()}
        merged = Segment(parts[0].first, parts[-1].last, len(live), num_bytes, live, held)
        self._files.replace(parts, merged)
        self.segments[around] = [merged] if len(merged.live) else []

    def _let_go(self, numbers: Int64Array, least_live: float) -> None:
        """Drops rows, int64 `[count]`, and rewrites their segments where a smaller part than `least_live` is left."""
        gone = np.unique(self.check(numbers))
        for number in gone[np.searchsorted(gone, self._first_pending) :].tolist():
            self._pending.pop(number, None)
        touched = {self._index_of(number) for number in gone.tolist() if number < self._first_pending} - {-1}
        segments = [self.segments[index] for index in sorted(touched)]
        for segment in segments:
            segment.drop(gone)
        for segment in segments:
            index = self._index_of(segment.first)
            is_here = index >= 0 and self.segments[index] is segment  # a neighbour may have been merged with it
            if is_here and len(segment.live) < least_live * segment.num_rows:
                self._rewrite(index)

    def _index_of(self, number: int) -> int:
        """Finds the segment that covers a number; -1 if none can."""
        return bisect_right(self.segments, number, key=lambda segment: segment.first) - 1

    def _refuse_earlier_run(self) -> None:
        if self._holds_earlier_run:
            raise ValueError(
                f"The folder {self._files.folder} holds rows of an earlier run. Give an empty folder, or load a "
                "checkpoint of that run before adding rows."
            )
