"""An append-only table on disk: a tail that can be read while it is written, sealed into Parquet parts."""

import contextlib
import os
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from mixer.arrow_messages import next_batch
from mixer.ledger_schemas import LATER

# Rows that are decoded at a time: lists take several times their size meanwhile.
_ROWS_PER_BATCH = 8192
# A part is sealed long before; a few bytes of Parquet can stand for more than there is memory.
_MOST_VALUES_PER_PART = 2**28
_MOST_TEXT_BYTES_PER_PART = 2**31
_FILE = re.compile(r"(part|tail)-(\d{1,12})\.(parquet|arrow)")


class Table:
    """Rows in the order of a `step` column, appended by one process and read by any.

    New rows gather in memory for some seconds, then go to the tail (an Arrow IPC stream). When the tail holds
    enough of them it is sealed into a Parquet part.

    Args:
        folder: Where the table is kept; made when the first row is written.
        schema: Columns and types, numbers, strings or lists; one is `step`. A table on disk may lack some of them.
        rows_per_part: Size at which the tail is sealed.
        flush_interval_seconds: Longest time that a row stays in memory while others come.
    """

    def __init__(
        self, folder: Path, schema: pa.Schema, rows_per_part: int = 200_000, flush_interval_seconds: float = 2.0
    ):
        self.folder = folder
        self.schema = schema
        self._rows_per_part = rows_per_part
        self._flush_interval_seconds = flush_interval_seconds
        self._buffer: list[Mapping[str, Any]] = []
        self._num_tail_rows = 0
        self._last_flush = time.monotonic()
        self._file: Any = None
        self._writer: Any = None

    def append(self, columns: Mapping[str, Sequence[Any] | np.ndarray]) -> None:
        """Adds rows.

        Args:
            columns: One sequence a column, of equal lengths.
        """
        self._buffer.append(columns)
        if time.monotonic() - self._last_flush >= self._flush_interval_seconds:
            self.flush()

    def flush(self) -> None:
        """Writes what is in memory to the tail, so that readers see it."""
        self._last_flush = time.monotonic()
        if not self._buffer:
            return
        if self._writer is None:
            self._open_tail()
        batch = pa.record_batch([self._gathered(field.name, field.type) for field in self.schema], schema=self.schema)
        self._writer.write_batch(batch)
        self._file.flush()
        self._buffer.clear()
        self._num_tail_rows += batch.num_rows
        if self._num_tail_rows >= self._rows_per_part:
            self.seal()

    def sync(self) -> None:
        """Writes everything out so that it stays even if the machine stops."""
        self.flush()
        if self._file is not None:
            os.fsync(self._file.fileno())

    def seal(self) -> None:
        """Turns the tail into a Parquet part."""
        self.close()
        self._num_tail_rows = 0
        for tail in self._tails():
            number = _number(tail)
            rows = self._read_tail(tail)
            if rows.num_rows:
                self._write_part(number, rows)
            tail.unlink()
        for sealed in files_of(self.folder, "tail-*.arrow"):  # what a crash left between sealing and removing
            sealed.unlink()

    def close(self) -> None:
        """Writes everything out and closes the file; appending opens it again."""
        self.flush()
        if self._writer is not None:
            os.fsync(self._file.fileno())
            self._writer.close()
            self._file.close()
            self._writer = self._file = None

    def truncate(self, step: int, num_rows_of_step: int | None = None) -> None:
        """Drops the rows after a step, to go on from there.

        Args:
            step: The last step that stays.
            num_rows_of_step: How many rows of that step stay, the first ones; `None` for all.
        """
        self.seal()
        mixed: list[tuple[Path, pa.Table]] = []
        for path in reversed(self._parts()):
            part = read_part(path, self.schema)
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
                self._write_part(_number(path), part.filter(stays))

    def read(self, columns: Sequence[str] | None = None) -> pa.Table:
        """Reads all rows, those in memory too.

        Args:
            columns: Names of the columns to read; `None` for all.

        Returns:
            The table; empty if there is none yet. Null in columns that were not written then.

        Raises:
            ValueError: If a part is damaged; its file is named.
        """
        self.flush()
        names = list(self.schema.names if columns is None else columns)
        tails = {_number(tail): self._read_tail(tail) for tail in self._tails()}
        paths = self._parts()  # after the tails: one of them may have been sealed meanwhile
        for path in paths:
            tails.pop(_number(path), None)
        kept = [tail.select([name for name in names if name in tail.column_names]) for tail in tails.values()]
        wanted = pa.schema([self.schema.field(name) for name in names])
        files = [*(read_part(path, wanted) for path in paths), *kept]
        empty = self.schema.empty_table().select(names)
        # What an older version wrote may lack a column: its rows have nulls there.
        return pa.concat_tables([empty, *files], promote_options="default").select(names)

    def is_empty(self) -> bool:
        """Says whether there is no row, without reading more than the tail."""
        return not (self._buffer or self._parts() or any(self._read_tail(tail).num_rows for tail in self._tails()))

    def _gathered(self, name: str, type_: pa.DataType) -> pa.Array | np.ndarray:
        """Joins a column of the rows in memory."""
        pieces = [rows[name] for rows in self._buffer]
        if pa.types.is_list(type_):  # the lists of two pieces may differ in length
            return pa.array([one for piece in pieces for one in piece], type_)
        return np.concatenate([np.asarray(piece) for piece in pieces])

    def _parts(self) -> list[Path]:
        return files_of(self.folder, "part-*.parquet")

    def _tails(self) -> list[Path]:
        """Lists the tails that are not sealed: a tail becomes the part of its number."""
        sealed = {_number(path) for path in self._parts()}
        return [path for path in files_of(self.folder, "tail-*.arrow") if _number(path) not in sealed]

    def _write_part(self, number: int, rows: pa.Table) -> None:
        path = self.folder / f"part-{number:06d}.parquet"
        temporary = path.with_suffix(".tmp")
        with temporary.open("wb") as file:
            pq.write_table(rows, file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)

    def _read_tail(self, path: Path) -> pa.Table:
        """Reads a tail up to where it is whole."""
        schema, batches = self.schema, []
        with contextlib.suppress(pa.ArrowException, OSError, EOFError), pa.OSFile(str(path)) as file:
            schema = pa.ipc.read_schema(file)
            while (batch := next_batch(file, schema)) is not None:
                batches.append(batch)  # what was read before a torn end is kept
        tail = pa.Table.from_batches(batches, schema=schema)
        problem = find_misfit(tail, self.schema)
        if problem is not None:
            raise ValueError(f"{path} is damaged ({problem}). Move the file away to read the rest.")
        return tail

    def _open_tail(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        if self._tails():  # of a process that was killed
            self._buffer, buffer = [], self._buffer
            self.seal()
            self._buffer = buffer
        parts = self._parts()
        number = _number(parts[-1]) + 1 if parts else 0
        self._file = (self.folder / f"tail-{number:06d}.arrow").open("wb")
        self._writer = pa.ipc.new_stream(self._file, self.schema)


def read_part(path: Path, schema: pa.Schema) -> pa.Table:
    """Reads a sealed part of a table.

    Args:
        path: The part.
        schema: Columns and types to read; columns that it lacks are left out.

    Returns:
        Its rows.

    Raises:
        ValueError: If it is damaged; its file is named.
    """
    try:
        rows = _read_parquet(path, schema.names)
        problem = find_misfit(rows, schema)
    except (pa.ArrowException, OSError, MemoryError, ValueError) as error:
        problem = str(error).splitlines()[0]
    if problem is not None:
        raise ValueError(
            f"{path} is damaged ({problem}): what a ledger recorded in that part is lost. Move the file away to read "
            "the rest."
        )
    return rows


def _read_parquet(path: Path, names: Sequence[str]) -> pa.Table:
    """Reads columns; texts by their different values, which may be few and long."""
    texts = [field.name for field in pq.read_schema(path) if field.type == pa.string() and field.name in names]
    with pq.ParquetFile(path, read_dictionary=texts) as part:
        fields = [field for field in part.schema_arrow if field.name in names]
        # Nothing is asked of single columns' metadata: where they are damaged, Arrow ends the process.
        num_values = part.metadata.num_rows * max(1, len(fields))
        if num_values > _MOST_VALUES_PER_PART:
            raise ValueError(f"it stands for {num_values:,} values, more than are ever sealed into a part")
        columns = [field.name for field in fields]
        batches, num_bytes = [], 0
        for batch in part.iter_batches(_ROWS_PER_BATCH, columns=columns):
            num_bytes += sum(_text_bytes(batch.column(name)) for name in texts)
            if num_bytes > _MOST_TEXT_BYTES_PER_PART:
                raise ValueError(f"it stands for {num_bytes:,} bytes of text, more than are ever sealed into a part")
            batches.append(_written_out(batch, texts))
    types = [pa.field(field.name, pa.string()) if field.name in texts else field for field in fields]
    return pa.Table.from_batches(batches, pa.schema(types))


def _text_bytes(column: pa.DictionaryArray) -> int:
    """Counts the bytes that a column takes when it is written out; its different values are checked."""
    column.dictionary.validate(full=True)
    return int(pc.sum(pc.binary_length(column.dictionary).take(column.indices)).as_py() or 0)


def _written_out(batch: pa.RecordBatch, texts: Sequence[str]) -> pa.RecordBatch:
    for name in texts:
        place = batch.schema.get_field_index(name)
        batch = batch.set_column(place, name, batch.column(place).dictionary_decode())
    return batch


def find_misfit(rows: pa.Table, schema: pa.Schema) -> str | None:
    """Says why rows cannot be those of a table.

    Args:
        rows: The rows; they may lack columns.
        schema: The table's columns and types.

    Returns:
        The column and what is wrong with it; `None` if nothing is.
    """
    try:
        present = [field for field in rows.schema if field.name in schema.names]
    except UnicodeDecodeError:
        return "the name of a column is no text"
    for field in present:
        expected = schema.field(field.name).type
        if field.type != expected:
            return f"its column {field.name!r} is of {field.type} instead of {expected}"
        if rows.column(field.name).null_count and not pa.types.is_list(expected):
            return f"its column {field.name!r} has rows without a value"
    missing = set(schema.names) - LATER - set(rows.column_names)
    return f"it has no column {min(missing)!r}" if missing else None


def files_of(folder: Path, pattern: str) -> list[Path]:
    """Lists files of a table.

    Args:
        folder: The table's folder.
        pattern: Which ones.

    Returns:
        Their paths, in order; without those whose names were never given.
    """
    return sorted(path for path in folder.glob(pattern) if _FILE.fullmatch(path.name))


def _number(path: Path) -> int:
    return int(path.stem.split("-")[1])
