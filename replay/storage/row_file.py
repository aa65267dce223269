"""Arrow files with the columns `number` and `row`, written atomically and never changed."""

import os
import shutil
import uuid
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa

from mixer.utils.arrays import Int64Array
from mixer.utils.files import writing
from mixer.utils.validation import check_plain

TEMPORARY_SUFFIX = ".tmp"

_ROWS_PER_BATCH = 1024
_NEXT_NUMBER = b"next_number"
_SCHEMA = pa.schema([pa.field("number", pa.int64(), False), pa.field("row", pa.large_binary(), False)])


class RowFile:
    """A memory-mapped file of rows.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If it is torn.
    """

    def __init__(self, path: Path):
        try:
            check_plain(path)
            table = pa.ipc.open_file(pa.memory_map(str(path))).read_all()
            table.validate(full=True)
            self.next_number = int((table.schema.metadata or {}).get(_NEXT_NUMBER, b"0"))
        except (pa.ArrowException, EOFError, OSError, ValueError) as error:
            if isinstance(error, OSError) and error.errno is not None:  # a system error, not a damaged file
                raise
            raise ValueError(f"{path} is torn ({error}). Load an earlier checkpoint.") from error
        if not table.schema.equals(_SCHEMA):
            raise ValueError(f"{path} has the columns {table.schema.names} instead of rows of a buffer.")
        self._numbers = [batch.to_numpy() for batch in table.column("number").chunks]  # in the file, not in memory
        self._rows = table.column("row")
        are_full = all(len(numbers) == _ROWS_PER_BATCH for numbers in self._numbers[:-1])
        if table.column("row").null_count or not are_full or not (np.diff(self.numbers, prepend=-1) > 0).all():
            raise ValueError(f"{path} is torn (its rows are not in their order). Load an earlier checkpoint.")

    @property
    def numbers(self) -> Int64Array:
        """int64 `[count]`: the rows' numbers, ascending."""
        return np.concatenate([np.empty(0, dtype=np.int64), *self._numbers])

    def read(self, index: int) -> Any:
        """Returns the bytes of the row at a place in `numbers`, as a buffer that keeps the file open."""
        return self._rows[index].as_buffer()

    def find(self, number: int) -> Any | None:
        """Returns the bytes of the row with a number, as a buffer that keeps the file open, or `None`."""
        batch = bisect_right(self._numbers, number, key=lambda numbers: int(numbers[0])) - 1
        if batch < 0:
            return None
        numbers = self._numbers[batch]
        index = int(np.searchsorted(numbers, number))
        is_here = index < len(numbers) and numbers[index] == number
        return self.read(batch * _ROWS_PER_BATCH + index) if is_here else None


class OpenFiles:
    """Keeps the `most` recently read files open."""

    def __init__(self, most: int = 256):
        self._most = most
        self._files: OrderedDict[str, RowFile] = OrderedDict()

    def open(self, path: str) -> RowFile:
        """Opens a file, or returns the open one, even if another file has its name by now."""
        file = self._files.get(path)
        if file is None:
            file = self._files[path] = RowFile(Path(path))
            if len(self._files) > self._most:
                self._files.popitem(last=False)
        else:
            self._files.move_to_end(path)
        return file

    def close(self, path: str) -> None:
        """Closes a file if it is open."""
        self._files.pop(path, None)

    def close_all(self) -> None:
        """Closes all files."""
        self._files.clear()


def write_rows(path: Path, numbers: Int64Array, rows: Sequence[Any], next_number: int = 0) -> None:
    """Writes a file of rows; equal rows give equal files.

    Args:
        path: The file.
        numbers: int64 `[count]`, ascending.
        rows: The bytes of each.
        next_number: A number to record in the file.
    """
    schema = _SCHEMA.with_metadata({_NEXT_NUMBER: str(next_number)})

    def write(file: BinaryIO) -> None:
        with pa.ipc.new_file(file, schema) as writer:
            for start in range(0, len(rows), _ROWS_PER_BATCH):
                part = slice(start, start + _ROWS_PER_BATCH)
                columns = [pa.array(numbers[part]), pa.array([bytes(row) for row in rows[part]], pa.large_binary())]
                writer.write_batch(pa.record_batch(columns, schema=schema))

    write_whole(path, write)


def write_whole(path: Path, write: Callable[[BinaryIO], None]) -> None:
    """Writes a file atomically, even if the machine stops.

    Args:
        path: The file.
        write: Writes its content.

    Raises:
        WriteError: If it cannot be written; the path is named.
    """
    # Two ranks may write the same file on a disk that they share.
    temporary = path.with_name(f"{path.name}.{uuid.uuid4().hex}{TEMPORARY_SUFFIX}")
    try:
        with writing(path):
            with temporary.open("wb") as file:
                write(file)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
            sync_folder(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def link_or_copy(source: Path, target: Path) -> None:
    """Hard-links a file that never changes, or copies it if links are not possible; an existing target stays."""
    try:
        os.link(source, target)
    except FileExistsError:
        return
    except OSError:  # another disk, or one without links
        with source.open("rb") as content:
            write_whole(target, lambda file: shutil.copyfileobj(content, file))


def sync_folder(folder: Path) -> None:
    """Flushes a folder's list of names to the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
