"""The folder of segments' files: who writes, who reads, and when a file that was replaced goes."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from mixer.utils.writing import writing
from replay.storage.row_file import TEMPORARY_SUFFIX, OpenFiles, link_or_copy, sync_folder, write_rows
from replay.storage.segment import Segment, covers

SEGMENTS = "rows-*.arrow"


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
