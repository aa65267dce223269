"""Arrow files with the columns `number`, `row` and `digest`, written atomically and never changed."""

import os
import shutil
import uuid
import zlib
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa

from mixer.utils.arrays import Int64Array
from mixer.utils.files import new_file, put_in_place, writing
from mixer.utils.validation import check_plain

TEMPORARY_SUFFIX = ".tmp"

_ROWS_PER_BATCH = 1024
_NEXT_NUMBER = b"next_number"
_KINDS = {"number": pa.int64(), "row": pa.large_binary(), "digest": pa.uint32()}
_SCHEMA = pa.schema([pa.field(name, kind, nullable=False) for name, kind in _KINDS.items()])


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
        self._path, self._rows, self._digests = path, table.column("row"), table.column("digest")
        are_full = all(len(numbers) == _ROWS_PER_BATCH for numbers in self._numbers[:-1])
        if table.column("row").null_count or not are_full or not (np.diff(self.numbers, prepend=-1) > 0).all():
            raise ValueError(f"{path} is torn (its rows are not in their order). Load an earlier checkpoint.")

    @property
    def numbers(self) -> Int64Array:
        """int64 `[count]`: the rows' numbers, ascending."""
        return np.concatenate([np.empty(0, dtype=np.int64), *self._numbers])

    def find(self, number: int) -> Any | None:
        """Returns the bytes of the row with a number, as a buffer that keeps the file open, or `None`.

        Raises:
            ValueError: If they are not those that were written under this number.
        """
        batch = bisect_right(self._numbers, number, key=lambda numbers: int(numbers[0])) - 1
        place = int(np.searchsorted(self._numbers[batch], number)) if batch >= 0 else 0
        if batch < 0 or place == len(self._numbers[batch]) or self._numbers[batch][place] != number:
            return None
        index = batch * _ROWS_PER_BATCH + place
        row = self._rows[index].as_buffer()
        if self._digests[index].as_py() != _digest(number, row):
            reason = f"row {number} is not what was written"
            raise ValueError(f"{self._path} is damaged: {reason}. Load an earlier checkpoint.")
        return row

    def read_all(self, numbers: Int64Array) -> dict[int, bytes]:
        """Returns the bytes of rows that are there, int64 `[count]`, by their numbers."""
        return {number: bytes(self.find(number) or b"") for number in numbers.tolist()}


def saved_rows(path: Path, wanted: Int64Array) -> RowFile:
    """Opens a file of a checkpoint; raises a `ValueError` that names it if it is missing, torn, or lacks a row."""
    try:
        file = RowFile(path)
    except FileNotFoundError:
        raise ValueError(f"{path} is missing. Load an earlier checkpoint.") from None
    missing = np.setdiff1d(wanted, file.numbers)
    if len(missing):
        raise ValueError(f"{path} lacks row {missing[0]}, which an entry refers to. Load an earlier checkpoint.")
    return file


def _digest(number: int, row: Any) -> int:
    return zlib.crc32(row, zlib.crc32(number.to_bytes(8, "little")))


def write_rows(path: Path, rows: Iterable[tuple[int, Any]], next_number: int = 0) -> None:
    """Writes a file of rows, a batch in memory at a time; equal rows give equal files.

    Args:
        path: The file.
        rows: Number and bytes of each, by ascending number.
        next_number: A number to record in the file.
    """
    schema = _SCHEMA.with_metadata({_NEXT_NUMBER: str(next_number)})
    left = iter(rows)
    with whole_file(path) as file, pa.ipc.new_file(file, schema) as writer:
        while part := list(islice(left, _ROWS_PER_BATCH)):
            numbers, contents = [number for number, _ in part], [bytes(row) for _, row in part]
            digests = pa.array(map(_digest, numbers, contents), pa.uint32())
            columns = [pa.array(numbers, pa.int64()), pa.array(contents, pa.large_binary()), digests]
            writer.write_batch(pa.record_batch(columns, schema=schema))


@contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """Opens a file for writing that gets its name once it is complete, even if the machine stops.

    Raises:
        WriteError: If it cannot be written; the path is named.
    """
    # Two ranks may write the same file on a disk that they share.
    temporary = path.with_name(f"{path.name}.{uuid.uuid4().hex}{TEMPORARY_SUFFIX}")
    try:
        with writing(path):
            with new_file(temporary) as file:
                yield file
            put_in_place(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def link_or_copy(source: Path, target: Path) -> None:
    """Hard-links a file that never changes, or copies it if links are not possible; an existing target stays."""
    try:
        os.link(source, target)
    except FileExistsError:
        return
    except OSError:  # another disk, or one without links
        with source.open("rb") as content, whole_file(target) as file:
            shutil.copyfileobj(content, file)
