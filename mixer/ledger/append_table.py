"""Append-only table on disk: a tail that can be read while it is written, sealed into Parquet parts."""

import errno
import os
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa

import mixer.ledger.table_files as table_files
from mixer.utils.arrays import Int64Array
from mixer.utils.files import WriteError, make_folder, new_file, sync_descriptor, writing

_TAILS = "tail-*.arrow"
_ROWS_IN_MEMORY = 16_384  # with many streams, or without a model, seconds can bring millions


def places_by_stream(rows: pa.Table) -> dict[str, Int64Array]:
    """Gives the places of each stream's rows, ascending, by name in order of first appearance."""
    names = rows.column("stream").dictionary_encode().combine_chunks()
    codes = names.indices.to_numpy(zero_copy_only=False)
    order = np.argsort(codes, kind="stable")  # sorting once is faster than looking for each of many streams
    return dict(zip(names.dictionary.to_pylist(), np.split(order, np.cumsum(np.bincount(codes))), strict=False))


class Table:
    """Rows in the order of a `step` column, appended by one process and readable by any.

    New rows are buffered for some seconds, or up to a limit, then written to the tail (an Arrow IPC stream). A tail
    that is large enough is sealed into a Parquet part.

    Args:
        folder: Folder of the table, created with the first row.
        schema: Columns and types (numbers, strings or lists), including `step`.
        rows_per_part: Size at which the tail is sealed.
        flush_interval_seconds: Maximum time that a row stays in memory while others come.
    """

    def __init__(
        self, folder: Path, schema: pa.Schema, rows_per_part: int = 200_000, flush_interval_seconds: float = 2.0
    ):
        self.folder = folder
        self.schema = schema
        self._rows_per_part = rows_per_part
        self._flush_interval_seconds = flush_interval_seconds
        self._buffer: list[Mapping[str, Any]] = []
        self._num_buffered_rows = self._num_tail_rows = 0
        self._sizes: dict[Path, int] = {}  # rows by part
        self._last_flush = time.monotonic()
        self._file: Any = None
        self._writer: Any = None
        self._failure: WriteError | None = None  # nothing is written after a failure

    def append(self, columns: Mapping[str, Sequence[Any] | np.ndarray]) -> None:
        """Appends rows: one sequence per column, of equal lengths."""
        self._buffer.append(columns)
        self._num_buffered_rows += len(columns["step"])
        is_full = self._num_buffered_rows >= _ROWS_IN_MEMORY
        if is_full or time.monotonic() - self._last_flush >= self._flush_interval_seconds:
            self.flush()

    def flush(self) -> None:
        """Writes buffered rows to the tail, for readers.

        Raises:
            WriteError: If writing fails or has failed before; the message names the folder.
        """
        with self._noting_failure():
            self._flush()

    @contextmanager
    def _noting_failure(self) -> Iterator[None]:
        try:
            with writing(self.folder):
                yield
        except WriteError as error:
            self._buffer.clear()
            self._failure = self._failure or error
        if self._failure is not None:
            raise self._failure

    def _flush(self) -> None:
        self._last_flush = time.monotonic()
        if self._failure is not None:
            return
        if not self._buffer:
            self._check_files()
            return
        if self._writer is None:
            self._open_tail()
        batch = self._gathered_rows()
        table_files.write_rows(self._writer, batch)
        self._file.flush()
        self._forget_buffer()
        self._num_tail_rows += batch.num_rows
        self._check_files()
        if self._num_tail_rows >= self._rows_per_part:
            self.seal()

    def _check_files(self) -> None:
        """Raises an `OSError` if a file that this table has written was removed or moved; saves the tail's rows."""
        if self._file is None:
            return
        lost = [path for path in self._sizes if not path.exists()]
        saved = ""
        if not _is_at(tail := Path(self._file.name), self._file):
            lost.insert(0, tail)
            saved = _saved_again(self._file)
        if lost:
            self._sizes.clear()
            raise OSError(errno.ENOENT, f"{lost[0].name} was removed or moved during the run{saved}", str(self.folder))

    def sync(self) -> None:
        """Flushes and syncs to disk, so that rows survive a machine failure."""
        self.flush()
        if self._file is not None:
            sync_descriptor(self._file.fileno(), Path(self._file.name))

    def seal(self) -> None:
        """Converts the tail and the rows in memory to a Parquet part."""
        if self._writer is None and not table_files.files_of(self.folder, _TAILS):
            with self._noting_failure():
                self._seal_buffer()
            return
        self.close(is_synced=False)  # the part is
        self._num_tail_rows = 0
        for tail in self._tails():
            number = table_files.number_of(tail)
            rows = table_files.read_tail(tail, self.schema)
            if rows.num_rows:
                self._write_part(number, rows)
            tail.unlink()
        for sealed in table_files.files_of(self.folder, _TAILS):  # left by a crash between sealing and removal
            sealed.unlink()

    def _seal_buffer(self) -> None:
        """Writes a part of rows that no tail ever held."""
        if self._buffer and self._failure is None:
            make_folder(self.folder)
            self._write_part(self._next_number(), pa.Table.from_batches([self._gathered_rows()]))
            self._forget_buffer()

    def _write_part(self, number: int, rows: pa.Table) -> None:
        path = self.folder / f"part-{number:06d}.parquet"
        table_files.write_part(path, rows)
        self._sizes[path] = rows.num_rows

    def close(self, is_synced: bool = True) -> None:
        """Flushes, syncs and closes the file; appending reopens it."""
        self.flush()
        if self._writer is not None:
            if is_synced:
                sync_descriptor(self._file.fileno(), Path(self._file.name))
            self._writer.close()
            self._file.close()
            self._writer = self._file = None

    def recover(self) -> None:
        """Abandons a tail after a failed write; its complete batches remain."""
        if self._failure is not None:
            self._failure = self._file = self._writer = None
            self._buffer.clear()

    def reset(self) -> None:
        """Forgets the existing files, after their folder was moved away."""
        self._forget_buffer()
        self._sizes.clear()
        self._num_tail_rows = 0

    def truncate(self, step: int, num_rows_of_step: int | None = None) -> None:
        """Drops the rows after a step, to resume from it.

        Args:
            step: Last step to keep.
            num_rows_of_step: Number of rows of that step to keep; `None` for all.
        """
        self.seal()
        self._sizes.clear()
        mixed: list[tuple[Path, pa.Table]] = []
        for path in reversed(self._parts()):
            part = table_files.read_part(path, self.schema)
            steps = part.column("step").to_numpy()
            if steps[-1] < step:
                break
            if steps[0] > step:
                path.unlink()
            else:
                mixed.insert(0, (path, part))
        num_left = sum(part.num_rows for _, part in mixed) if num_rows_of_step is None else num_rows_of_step
        for path, part in mixed:
            steps = part.column("step").to_numpy()
            is_last = steps == step
            stays = (steps < step) | (is_last & (np.cumsum(is_last) <= num_left))
            num_left -= int(is_last.sum())
            if not stays.any():
                path.unlink()
            elif not stays.all():
                table_files.write_part(path, part.filter(stays))
        self.num_rows()  # notes the parts that must stay from now on

    def num_rows(self) -> int:
        """Counts all rows, including buffered ones."""
        for path in self._parts():
            if path not in self._sizes:
                self._sizes[path] = table_files.num_rows_of(path)
        return sum(self._sizes.values()) + self._num_tail_rows + self._num_buffered_rows

    def read(self, columns: Sequence[str] | None = None) -> pa.Table:
        """Reads all rows, including buffered ones.

        Args:
            columns: Columns to read; `None` for all.

        Raises:
            ValueError: If a part is damaged; the message names the file.
        """
        if self._failure is None:
            self.flush()
        names = list(self.schema.names if columns is None else columns)
        tails = {table_files.number_of(tail): table_files.read_tail(tail, self.schema) for tail in self._tails()}
        paths = self._parts()  # listed after the tails, one of which may have just been sealed
        for path in paths:
            tails.pop(table_files.number_of(path), None)
        kept = [tail.select([name for name in names if name in tail.column_names]) for tail in tails.values()]
        requested = pa.schema([self.schema.field(name) for name in names])
        files = [*(table_files.read_part(path, requested) for path in paths), *kept]
        empty = self.schema.empty_table().select(names)
        return pa.concat_tables([empty, *files], promote_options="default").select(names)

    def is_empty(self) -> bool:
        """Whether there are no rows; reads at most the tail."""
        sizes = (table_files.read_tail(tail, self.schema).num_rows for tail in self._tails())
        return not (self._buffer or self._parts() or any(sizes))

    def _gathered_rows(self) -> pa.RecordBatch:
        columns = [self._gathered(field.name, field.type) for field in self.schema]
        return pa.record_batch(columns, schema=self.schema)

    def _gathered(self, name: str, type_: pa.DataType) -> pa.Array | np.ndarray:
        """Concatenates a column of the buffered rows."""
        pieces = [rows[name] for rows in self._buffer]
        if pa.types.is_list(type_):  # lists may differ in length between pieces
            return pa.array([row for piece in pieces for row in piece], type_)
        return np.concatenate([np.asarray(piece) for piece in pieces])

    def _parts(self) -> list[Path]:
        return table_files.files_of(self.folder, "part-*.parquet")

    def _tails(self) -> list[Path]:
        """Lists unsealed tails: a sealed tail has a part of the same number."""
        sealed = {table_files.number_of(path) for path in self._parts()}
        tails = table_files.files_of(self.folder, _TAILS)
        return [path for path in tails if table_files.number_of(path) not in sealed]

    def _forget_buffer(self) -> None:
        self._buffer.clear()
        self._num_buffered_rows = 0

    def _next_number(self) -> int:
        parts = self._parts()
        return table_files.number_of(parts[-1]) + 1 if parts else 0

    def _open_tail(self) -> None:
        make_folder(self.folder)
        if self._tails():  # left by a killed process
            self._buffer, buffer = [], self._buffer
            self.seal()
            self._buffer = buffer
        self._file = new_file(self.folder / f"tail-{self._next_number():06d}.arrow")
        self._writer = table_files.open_tail(self._file, self.schema)


def _is_at(path: Path, file: BinaryIO) -> bool:
    """Whether an open file still has the path under which it was opened."""
    return path.is_file() and os.path.samestat(path.stat(), os.fstat(file.fileno()))


def _saved_again(file: BinaryIO) -> str:
    """Writes an open file, whose name is gone, under that name again; returns what is to be said of it."""
    path = Path(file.name)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("xb") as copy:
            file.seek(0)
            shutil.copyfileobj(file, copy)
    except OSError:
        return ""
    return ", and its rows were saved there again"
