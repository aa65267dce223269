"""Arrow files of rows with their numbers and digests, written atomically and never changed."""

import io
import os
import shutil
import uuid
import zlib
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa

from mixer.utils.arrays import Int64Array
from mixer.utils.errors import InvalidValueError
from mixer.utils.files import new_file, put_in_place, writing
from mixer.utils.validation import check_plain
from replay.storage.codec import EncodedRow

TEMPORARY_SUFFIX = ".tmp"

_ROWS_PER_BATCH = 1024
_NEXT_NUMBER = b"next_number"
_DATA = pa.large_list(pa.field("item", pa.large_binary(), nullable=False))
_KINDS = {"number": pa.int64(), "form": pa.large_string(), "data": _DATA, "digest": pa.uint32()}
SCHEMA = pa.schema([pa.field(name, kind, nullable=False) for name, kind in _KINDS.items()])


def damaged_file(path: str, problem: str) -> InvalidValueError:
    """Returns the error about a file, whose problem is a predicate."""
    return InvalidValueError.about(path, f"{problem}. Load an earlier checkpoint.")


class RowTable:
    """Rows in an Arrow file.

    Args:
        source: The file, in memory or mapped into it.
        name: What errors call it.

    Raises:
        ValueError: If it is torn.
    """

    def __init__(self, source: Any, name: str):
        self._name = name
        try:
            table = pa.ipc.open_file(source).read_all()
            table.validate(full=True)
            self.next_number = int((table.schema.metadata or {}).get(_NEXT_NUMBER, b"0"))
        except (pa.ArrowException, EOFError, OSError, ValueError) as error:
            raise self._torn(str(error)) from error
        if not table.schema.equals(SCHEMA):
            raise self._torn(f"its columns are {table.schema.names}")
        if any(column.null_count for column in table.columns):
            raise self._torn("it has empty places")
        numbers, self._forms, self._data, self._digests = table.columns
        self._numbers = [batch.to_numpy() for batch in numbers.chunks]  # in the file, not in memory
        are_full = all(len(batch) == _ROWS_PER_BATCH for batch in self._numbers[:-1])
        if not are_full or not (np.diff(self.numbers, prepend=-1) > 0).all():
            raise self._torn("its rows are not in their order")

    @property
    def numbers(self) -> Int64Array:
        """int64 `[count]`: the rows' numbers, ascending."""
        return np.concatenate([np.empty(0, dtype=np.int64), *self._numbers])

    def find(self, number: int) -> EncodedRow | None:
        """Returns the row with a number, or `None`.

        Raises:
            ValueError: If it is not what was written under this number.
        """
        batch = bisect_right(self._numbers, number, key=lambda numbers: int(numbers[0])) - 1
        place = int(np.searchsorted(self._numbers[batch], number)) if batch >= 0 else 0
        if batch < 0 or place == len(self._numbers[batch]) or self._numbers[batch][place] != number:
            return None
        place += batch * _ROWS_PER_BATCH
        row = EncodedRow(self._forms[place].as_py(), [content or b"" for content in self._data[place].as_py()])
        if self._digests[place].as_py() != _digest(number, row):
            raise damaged_file(self._name, f"is damaged: row {number} is not what was written")
        return row

    def read_all(self, numbers: Int64Array | None = None) -> dict[int, EncodedRow]:
        """Returns rows that are there, int64 `[count]`, by their numbers; `None` for all."""
        wanted = self.numbers if numbers is None else numbers
        return {number: row for number in wanted.tolist() if (row := self.find(number)) is not None}

    def _torn(self, reason: str) -> InvalidValueError:
        return damaged_file(self._name, f"is torn ({reason})")


def open_rows(path: Path) -> RowTable:
    """Maps a file of rows into memory.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If it is torn.
    """
    try:
        check_plain(path)
        mapped = pa.memory_map(str(path))
    except (OSError, ValueError) as error:
        if isinstance(error, OSError) and error.errno is not None:  # a system error, not a damaged file
            raise
        raise damaged_file(str(path), f"is torn ({error})") from error
    return RowTable(mapped, str(path))


def saved_rows(path: Path, wanted: Int64Array) -> RowTable:
    """Opens a file of a checkpoint; raises a `ValueError` that names it if it is missing, torn, or lacks a row."""
    try:
        table = open_rows(path)
    except FileNotFoundError:
        raise damaged_file(str(path), "is missing") from None
    missing = np.setdiff1d(wanted, table.numbers)
    if len(missing):
        raise damaged_file(str(path), f"lacks row {missing[0]}, which an entry refers to")
    return table


def _digest(number: int, row: EncodedRow) -> int:
    digest = zlib.crc32(row.form.encode(), zlib.crc32(number.to_bytes(8, "little")))
    for content in row.data:
        digest = zlib.crc32(content, zlib.crc32(len(content).to_bytes(8, "little"), digest))
    return digest


def write_rows(path: Path, rows: Iterable[tuple[int, EncodedRow]], next_number: int = 0) -> None:
    """Writes a file of rows, a batch in memory at a time; equal rows give equal files.

    Args:
        path: The file.
        rows: Number and content of each, by ascending number.
        next_number: A number to record in the file.
    """
    with whole_file(path) as file:
        _write(file, rows, next_number)


def to_message(rows: Mapping[int, EncodedRow]) -> bytes:
    """Returns rows as the content of a file."""
    file = io.BytesIO()
    _write(file, sorted(rows.items()))
    return file.getvalue()


def _write(file: Any, rows: Iterable[tuple[int, EncodedRow]], next_number: int = 0) -> None:
    schema, left = SCHEMA.with_metadata({_NEXT_NUMBER: str(next_number)}), iter(rows)
    with pa.ipc.new_file(file, schema) as writer:
        while part := list(islice(left, _ROWS_PER_BATCH)):
            lists = (
                [number for number, _ in part],
                [row.form for _, row in part],
                [row.data for _, row in part],
                [_digest(number, row) for number, row in part],
            )
            columns = [pa.array(values, kind) for values, kind in zip(lists, SCHEMA.types, strict=True)]
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
