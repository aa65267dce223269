"""An append-only table on disk: a tail that can be read while it is written, sealed into Parquet parts."""

import os
import time
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

# Rows that are decoded at a time: lists take several times their size meanwhile.
_ROWS_PER_BATCH = 8192
_DIGEST = "crc32"


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
        self._failure: OSError | None = None  # a tail that could not be written ends there: nothing comes after it

    def append(self, columns: Mapping[str, Sequence[Any] | np.ndarray]) -> None:
        """Adds rows.

        Args:
            columns: One sequence a column, of equal lengths.
        """
        self._buffer.append(columns)
        if time.monotonic() - self._last_flush >= self._flush_interval_seconds:
            self.flush()

    def flush(self) -> None:
        """Writes what is in memory to the tail, so that readers see it.

        Raises:
            OSError: If it cannot be written, or could not be before; the folder is named.
        """
        try:
            self._flush()
        except OSError as error:
            self._buffer.clear()
            self._failure = self._failure or OSError(error.errno, error.strerror or str(error), str(self.folder))
        if self._failure is not None:
            raise self._failure

    def _flush(self) -> None:
        self._last_flush = time.monotonic()
        if not self._buffer or self._failure is not None:
            return
        if self._writer is None:
            self._open_tail()
        batch = pa.record_batch([self._gathered(field.name, field.type) for field in self.schema], schema=self.schema)
        self._writer.write_batch(batch, custom_metadata={_DIGEST: str(zlib.crc32(batch.serialize()))})
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
        for sealed in self.folder.glob("tail-*.arrow"):  # what a crash left between sealing and removing
            sealed.unlink()

    def close(self) -> None:
        """Writes everything out and closes the file; appending opens it again."""
        self.flush()
        if self._writer is not None:
            os.fsync(self._file.fileno())
            self._writer.close()
            self._file.close()
            self._writer = self._file = None

    def recover(self) -> None:
        """Lets go of a tail that could not be written; what is whole of it stays."""
        if self._failure is not None:
            self._failure = self._file = self._writer = None
            self._buffer.clear()

    def truncate(self, step: int, num_rows_of_step: int | None = None) -> None:
        """Drops the rows after a step, to go on from there.

        Args:
            step: The last step that stays.
            num_rows_of_step: How many rows of that step stay, the first ones; `None` for all.
        """
        self.seal()
        mixed: list[tuple[Path, pa.Table]] = []
        for path in reversed(self._parts()):
            part = read_part(path, self.schema.names)
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

    def last_step(self) -> int:
        """Gives the last step that a sealed row is of; -1 if there is none."""
        parts = self._parts()
        return int(read_part(parts[-1], ["step"]).column("step")[-1].as_py()) if parts else -1

    def read(self, columns: Sequence[str] | None = None) -> pa.Table:
        """Reads all rows, those in memory too.

        Args:
            columns: Names of the columns to read; `None` for all.

        Returns:
            The table; empty if there is none yet. Null in columns that were not written then.

        Raises:
            ValueError: If a part is damaged; its file is named.
        """
        if self._failure is None:
            self.flush()
        names = list(self.schema.names if columns is None else columns)
        tails = {_number(tail): self._read_tail(tail) for tail in self._tails()}
        paths = self._parts()  # after the tails: one of them may have been sealed meanwhile
        for path in paths:
            tails.pop(_number(path), None)
        kept = [tail.select([name for name in names if name in tail.column_names]) for tail in tails.values()]
        files = [*(read_part(path, names) for path in paths), *kept]
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
        return sorted(self.folder.glob("part-*.parquet"))

    def _tails(self) -> list[Path]:
        """Lists the tails that are not sealed: a tail becomes the part of its number."""
        sealed = {_number(path) for path in self._parts()}
        return [path for path in sorted(self.folder.glob("tail-*.arrow")) if _number(path) not in sealed]

    def _write_part(self, number: int, rows: pa.Table) -> None:
        path = self.folder / f"part-{number:06d}.parquet"
        temporary = path.with_suffix(".tmp")
        with temporary.open("wb") as file:
            pq.write_table(rows.cast(_signed(rows.schema, rows.num_rows)), file, write_page_checksum=True)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)

    def _read_tail(self, path: Path) -> pa.Table:
        """Reads a tail up to where it is whole."""
        schema, batches = self.schema, []
        try:
            with path.open("rb") as file, pa.ipc.open_stream(file) as reader:
                _check_columns(reader.schema, path)
                schema = reader.schema
                for batch, notes in reader.iter_batches_with_custom_metadata():
                    _check(batch, notes, path)
                    batches.append(batch)  # what was read before a torn end is kept
        except UnicodeDecodeError:
            raise _damaged(path, "its columns are not what was written") from None
        except (pa.ArrowException, OSError, EOFError, MemoryError):
            pass
        return pa.Table.from_batches(batches, schema=schema)

    def _open_tail(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        if self._tails():  # of a process that was killed
            self._buffer, buffer = [], self._buffer
            self.seal()
            self._buffer = buffer
        parts = self._parts()
        number = _number(parts[-1]) + 1 if parts else 0
        self._file = (self.folder / f"tail-{number:06d}.arrow").open("wb")
        self._writer = pa.ipc.new_stream(self._file, _signed(self.schema))


def read_part(path: Path, names: Sequence[str]) -> pa.Table:
    """Reads a sealed part of a table.

    Args:
        path: The part.
        names: Names of the columns to read; those that it lacks are left out.

    Returns:
        Its rows.

    Raises:
        ValueError: If it is damaged; its file is named.
    """
    try:
        part = pq.ParquetFile(path, page_checksum_verification=True)  # older versions wrote no checksums
        _check_columns(part.schema_arrow, path, part.metadata.num_rows)
        fields = [field for field in part.schema_arrow if field.name in names]
        batches = part.iter_batches(_ROWS_PER_BATCH, columns=[field.name for field in fields])
        rows = pa.Table.from_batches(batches, pa.schema(fields))
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise _damaged(path, str(error).splitlines()[0]) from None
    if rows.num_rows != part.metadata.num_rows and fields:
        raise _damaged(path, f"{rows.num_rows} of its {part.metadata.num_rows} rows are there")
    return rows


def _signed(schema: pa.Schema, num_rows: int | None = None) -> pa.Schema:
    """Notes a digest of the columns, without which one whose name was damaged would count as not written."""
    return schema.with_metadata({_DIGEST: _digest_of(schema, num_rows)})


def _digest_of(schema: pa.Schema, num_rows: int | None) -> bytes:
    # Parquet calls what a list holds by a name of its own.
    kinds = [f"list of {kind.value_type}" if pa.types.is_list(kind) else kind for kind in schema.types]
    columns = ";".join(f"{name}:{kind}" for name, kind in zip(schema.names, kinds, strict=True))
    return str(zlib.crc32(f"{columns};{num_rows}".encode())).encode()


def _check_columns(schema: pa.Schema, path: Path, num_rows: int | None = None) -> None:
    """Refuses a file whose columns are not those that were written; older versions noted no digest."""
    digest = _digest_of(schema, num_rows)
    if (schema.metadata or {}).get(_DIGEST.encode(), digest) != digest:
        raise _damaged(path, "its columns are not what was written")


def _check(batch: pa.RecordBatch, notes: Mapping[bytes, bytes] | None, path: Path) -> None:
    """Refuses rows of a tail that are not what was written; older versions noted no digest."""
    digest = (notes or {}).get(_DIGEST.encode())
    if digest is not None and digest != str(zlib.crc32(batch.serialize())).encode():
        raise _damaged(path, "its rows are not what was written")


def _damaged(path: Path, why: str) -> ValueError:
    return ValueError(
        f"{path} is damaged ({why}): what a ledger recorded in that part is lost. Move the file away to read the rest."
    )


def _number(path: Path) -> int:
    return int(path.stem.split("-")[1])
