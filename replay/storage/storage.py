"""Storage options of a buffer."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from mixer.utils.errors import InvalidValueError
from mixer.utils.registry import as_rule
from replay.storage.disk_rows import ROWS_PER_SEGMENT, DiskRows
from replay.storage.rows import MemoryRows, Rows


class Storage:
    """Where to store the contents of a buffer.

    `keeps_contents` says whether samples are copied; otherwise they are read again from their data set, and rows hold
    payloads only.
    """

    keeps_contents: ClassVar[bool]

    @property
    def working_folder(self) -> Path | None:
        """Folder of the files during the run, or `None` for memory."""
        return None

    def open(self, is_writer: bool) -> Rows:  # for rows on disk
        """Opens empty rows; `is_writer` says whether this rank writes files during the run."""
        return MemoryRows()


@dataclass(frozen=True)
class References(Storage):
    """Samples stay in their data sets, which must remain unchanged for the lifetime of the buffer."""

    keeps_contents = False


@dataclass(frozen=True)
class InMemory(Storage):
    """Samples are copied into memory, on every rank, and into checkpoints."""

    keeps_contents = True


@dataclass(frozen=True)
class OnDisk(Storage):
    """Samples are copied into files; checkpoints link to them.

    Args:
        folder: Folder of the files during the run: empty, visible to all ranks, not shared with another buffer
            or run, and best on the disk of the checkpoints.
        rows_per_segment: Number of samples in a file.

    Raises:
        ValueError: If `rows_per_segment` is less than 1.
    """

    folder: Path | str
    rows_per_segment: int = ROWS_PER_SEGMENT
    keeps_contents = True

    def __post_init__(self) -> None:
        if self.rows_per_segment < 1:
            raise InvalidValueError(option="rows_per_segment", expected="1 or more", found=self.rows_per_segment)

    @property
    def working_folder(self) -> Path:
        """See the base class."""
        return Path(self.folder)

    def open(self, is_writer: bool) -> Rows:
        """See the base class."""
        return DiskRows(self.folder, is_writer, self.rows_per_segment)


def as_storage(value: Storage | str) -> Storage:
    """Converts a user's choice, a `Storage`, `"references"` or `"memory"`.

    Raises:
        ValueError: If the name is unknown, or that of `OnDisk`, which needs a folder.
        TypeError: If it is anything else.
    """
    by_name = {"references": References, "memory": InMemory, "disk": OnDisk}
    storage: Storage = as_rule(value, Storage, by_name, "storage")
    return storage
