"""Rows on disk: constant memory, and crash-safe files."""

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from operator import index
from pathlib import Path

import numpy as np

from mixer.checkpoint.lock import SharedLock
from mixer.utils.arrays import Int64Array
from mixer.utils.errors import InvalidValueError
from mixer.utils.files import other_version, read_json, sync_to_disk, write_json, writing
from mixer.utils.validation import refusing_damage
from replay.storage.codec import EncodedRow
from replay.storage.row_file import TEMPORARY_SUFFIX, link_or_copy, open_rows, saved_rows, write_rows
from replay.storage.rows import Rows

_MANIFEST, _PENDING, _SEGMENTS, _LOCK = "rows.json", "pending.arrow", "rows-*.arrow", "_rows.lock"
_FORMAT = 4
ROWS_PER_SEGMENT = 65_536
_BYTES_PER_SEGMENT = 16 * 2**20
_MOST_OPEN = 256


@dataclass(eq=False)
class Segment:
    """The rows of one file, known to every rank without reading it.

    Args:
        first: The first number that it covers; it ends where the next segment begins.
        num_rows: Number of rows in its file.
        live: `[num_live]`: numbers of the rows that were not dropped, ascending.
        held: Rows that are not known to be in a file yet.
    """

    first: int
    num_rows: int
    live: Int64Array
    held: dict[int, EncodedRow] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Name of its file: a segment only ever loses rows, so that no two contents share a name."""
        return f"rows-{self.first:012d}-{self.num_rows}.arrow"

    def has(self, number: int) -> bool:
        """Whether a row is one of the live ones."""
        place = int(self.live.searchsorted(number))
        return place < len(self.live) and int(self.live[place]) == number

    def drop(self, numbers: Int64Array) -> None:
        """Drops rows, int64 `[count]`, ascending and distinct; those of other segments are ignored."""
        first, last = np.searchsorted(numbers, self.first), np.searchsorted(numbers, self.live[-1], side="right")
        self.live = np.setdiff1d(self.live, numbers[first:last], assume_unique=True)
        for number in numbers[first:last].tolist():
            self.held.pop(number, None)


class DiskRows(Rows):
    """Rows in files of one segment each.

    A segment is written when it is full, and rewritten when less than half of its rows are still needed. The files
    follow from the sequence of calls alone, so ranks that make the same calls know the same files. A row is written
    about once, and copied a bounded number of times per dropped row.

    Ranks know of the same segments but are not at the same place at the same time. Who does not write may look for a
    file that is not written yet, and takes the row from the one that it will replace; it may also look for one that was
    just replaced, so that those stay a while.

    Args:
        folder: Folder of the files during the run; empty, unless a checkpoint is loaded next.
        is_writer: Whether this rank writes; other ranks read its files, and hold rows in memory until the files appear.
        rows_per_segment: Number of rows of a full segment; 16 MiB fill a segment too.

    Raises:
        ValueError: If another process writes there.
    """

    def __init__(self, folder: Path | str, is_writer: bool = True, rows_per_segment: int = ROWS_PER_SEGMENT):
        self._folder, self._is_writer, self._rows_per_segment = Path(folder), is_writer, rows_per_segment
        self._segments: list[Segment] = []
        # Rows since the last full segment: the number of the first, their size with those that were dropped, and those
        # that were not. A segment's end depends on nothing else, so that saving does not move it.
        self._first_pending = self._pending_bytes = 0
        self._pending: dict[int, EncodedRow] = {}
        self._checkpoint: Path | None = None
        self.opened = lru_cache(_MOST_OPEN)(open_rows)
        # Files that were replaced, of late and before that.
        self._replaced: list[Path] = []
        self._doomed: list[Path] = []
        if is_writer:
            self._lock = SharedLock.of(self._folder, "OnDisk(folder)", _LOCK)
            self._remove(self._folder.glob(f"{_SEGMENTS}.*{TEMPORARY_SUFFIX}"))
        self._holds_earlier_run = is_writer and any(self._folder.glob(_SEGMENTS))

    def add(self, contents: Iterable[EncodedRow]) -> None:
        """See the base class.

        Raises:
            ValueError: If the folder holds rows of an earlier run and no checkpoint was loaded.
        """
        self._refuse_earlier_run()
        first_pending = self._first_pending
        for content in contents:
            self._pending[self.next_number] = content
            self.next_number += 1
            self._pending_bytes += content.num_bytes
            is_full = self.next_number - self._first_pending >= self._rows_per_segment
            if is_full or self._pending_bytes >= _BYTES_PER_SEGMENT:
                self._seal()
        if self._first_pending != first_pending:
            self._remove_replaced()

    def content(self, number: int) -> EncodedRow | None:
        """See the base class."""
        if number >= self._first_pending:
            return self._pending.get(number)
        place = self._place_of(number)
        is_live = place >= 0 and self._segments[place].has(number)
        return self._read(self._segments[place], number) if is_live else None

    def drop(self, numbers: Int64Array) -> None:
        """See the base class."""
        self._drop_live(numbers, least_live=0.5)

    def erase(self, numbers: Int64Array) -> None:
        """See the base class; checkpoints that have the rows keep them."""
        self._drop_live(numbers, least_live=1.0)
        self._remove(self._doomed + self._replaced)
        self._doomed, self._replaced = [], []
        if self._is_writer:
            sync_to_disk(self._folder)

    def save(self, folder: Path) -> None:
        """See the base class; files of segments are linked, so that little is written."""
        self._refuse_earlier_run()
        folder.mkdir(parents=True, exist_ok=True)
        (folder / _MANIFEST).unlink(missing_ok=True)  # the content of the folder is not valid until one is written
        self._link(self._folder, folder)
        write_rows(folder / _PENDING, self._pending.items())
        counters = {"next_number": self.next_number, "first_pending": self._first_pending}
        segments = [[segment.first, segment.num_rows] for segment in self._segments]
        content = {"format": _FORMAT, **counters, "pending_bytes": self._pending_bytes, "segments": segments}
        write_json(folder / _MANIFEST, content, sealed=True)

    def load(self, folder: Path, wanted: Iterable[int]) -> None:
        """See the base class; files in the working folder that came after the checkpoint are removed."""
        path, numbers = folder / _MANIFEST, np.unique(np.fromiter(wanted, np.int64))
        content = read_json(path)
        if content.get("format") != _FORMAT:
            text = f"{other_version(str(path), content.get('format'), _FORMAT)}."
            raise InvalidValueError(text, option="format", found=content.get("format"))
        with refusing_damage(f"{path}"):
            counters = (index(content[name]) for name in ("next_number", "first_pending", "pending_bytes"))
            next_number, first_pending, pending_bytes = counters  # no texts
            table = [(index(first), index(num_rows)) for first, num_rows in content["segments"]]
            parts = np.split(numbers, np.searchsorted(numbers, [*(first for first, _ in table), first_pending]))
            segments = [Segment(first, size, live) for (first, size), live in zip(table, parts[1:], strict=False)]
        pending = saved_rows(folder / _PENDING, np.concatenate([parts[0], parts[-1]]))
        for segment in segments:
            saved_rows(folder / segment.name, segment.live)
        self.next_number, self._first_pending, self._pending_bytes = next_number, first_pending, pending_bytes
        self._segments, self._pending = segments, pending.read_all(parts[-1])
        self._doomed, self._replaced, self._holds_earlier_run = [], [], False
        self.opened.cache_clear()
        if self._is_writer:
            self._link(folder, self._folder)
        else:  # who does not write reads there what is not here yet
            self._checkpoint = folder

    # ---- Segments ----

    def _seal(self) -> None:
        first, live = self._first_pending, np.fromiter(self._pending, np.int64)
        self._segments.append(Segment(first, self.next_number - first, live, self._pending))
        self._first_pending, self._pending_bytes, self._pending = self.next_number, 0, {}
        self._rewrite(len(self._segments) - 1)

    def _drop_live(self, numbers: Int64Array, least_live: float) -> None:
        """Drops rows, int64 `[count]`, and rewrites their segments where a smaller part than `least_live` is left."""
        gone = np.unique(self.check(numbers))
        for number in gone[gone >= self._first_pending].tolist():
            self._pending.pop(number, None)
        touched = {self._place_of(number) for number in gone[gone < self._first_pending].tolist()} - {-1}
        for place in sorted(touched, reverse=True):
            segment = self._segments[place]
            segment.drop(gone)
            if len(segment.live) < least_live * segment.num_rows:
                self._rewrite(place)

    def _rewrite(self, place: int) -> None:
        """Writes the live rows of a segment, if this rank writes; its old file is removed later."""
        old = self._segments[place]
        new = Segment(old.first, len(old.live), old.live, old.held)
        if self._is_writer:
            if new.num_rows:
                write_rows(self._folder / new.name, ((number, self._read(old, number)) for number in old.live.tolist()))
                new.held = {}
            self._replaced += [self._folder / old.name] if old.name != new.name else []
        self._segments[place : place + 1] = [new] if new.num_rows else []

    def _place_of(self, number: int) -> int:
        """Finds the segment that covers a number; -1 if none can."""
        return bisect_right(self._segments, number, key=lambda segment: segment.first) - 1

    # ---- Files ----

    def _read(self, segment: Segment, number: int) -> EncodedRow:
        """Returns a live row."""
        if number in segment.held:
            return segment.held[number]
        for path in self._places(segment):
            try:
                row = self.opened(path).find(number)
            except FileNotFoundError:
                continue
            if row is not None:
                return row
        text = f"No file in {self._folder} holds row {number} of {segment.name}. All ranks need to see the folder."
        raise InvalidValueError(text, option="OnDisk(folder)", found=number)

    def _places(self, segment: Segment) -> Iterator[Path]:
        yield self._folder / segment.name
        if not self._is_writer:
            for folder in filter(None, (self._folder, self._checkpoint, self._folder)):
                yield from folder.glob(f"rows-{segment.first:012d}-*.arrow")

    def _remove_replaced(self) -> None:
        """Removes files that were replaced earlier, and frees rows that are in a file by now."""
        self._remove(self._doomed)
        self._doomed, self._replaced = self._replaced, []
        for segment in self._segments:
            if segment.held and (self._folder / segment.name).is_file():
                segment.held = {}

    def _link(self, source: Path, target: Path) -> None:
        """Gives the files of all segments a second name in another folder, in place of any that are there."""
        self._remove(target.glob(_SEGMENTS))
        for segment in self._segments:
            link_or_copy(source / segment.name, target / segment.name)
        sync_to_disk(target)

    def _remove(self, paths: Iterable[Path]) -> None:
        for path in list(paths):
            with writing(path):
                path.unlink(missing_ok=True)
        self.opened.cache_clear()  # or the disk would keep what is gone

    def _refuse_earlier_run(self) -> None:
        if self._holds_earlier_run:
            text = (
                f"{self._folder} holds rows of an earlier run. Give an empty folder, or load a checkpoint of that run."
            )
            raise InvalidValueError.about("OnDisk(folder)", text, found=str(self._folder))
