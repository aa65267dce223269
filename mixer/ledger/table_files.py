"""A table's files: sealed parts in Parquet, and the growing tail of Arrow record batches."""

import contextlib
import os
import re
import struct
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from mixer.utils.validation import check_plain, read_bytes

# Where flatbuffers hold what is asked of a message: its header, and in that of a batch how its buffers are compressed.
_HEADER, _COMPRESSION = 2, 3


def next_batch(file: pa.NativeFile, schema: pa.Schema) -> pa.RecordBatch | None:
    """Reads the next record batch.

    Args:
        file: The file, behind the schema or the batch before.
        schema: The schema.

    Returns:
        The batch, within the memory that its file takes; `None` at the end.

    Raises:
        pa.ArrowException, OSError: If the file is torn, or it is no such batch: what it says of itself is
            compared with what is there.
    """
    try:
        message = pa.ipc.read_message(file)
    except EOFError:
        return None
    if message.type != "record batch" or _is_compressed(message.metadata.to_pybytes()):
        raise pa.ArrowInvalid("a message is no plain batch of rows, such as are written")
    batch = pa.ipc.read_record_batch(message, schema)
    batch.validate(full=True)
    return batch


def _is_compressed(metadata: bytes) -> bool:
    """Whether buffers are compressed: few bytes could stand for more than there is memory."""
    try:
        root = int(struct.unpack_from("<I", metadata)[0])
        header = _field(metadata, root, _HEADER)
        table = header + int(struct.unpack_from("<I", metadata, header)[0])
        return bool(_field(metadata, table, _COMPRESSION))
    except struct.error:
        raise pa.ArrowInvalid("a message has no header that can be read") from None


def _field(metadata: bytes, table: int, number: int) -> int:
    """Finds a field of a table; 0 where the table has none of that number."""
    entries = table - int(struct.unpack_from("<i", metadata, table)[0])
    place = 4 + 2 * number
    if place >= int(struct.unpack_from("<H", metadata, entries)[0]):
        return 0
    offset = int(struct.unpack_from("<H", metadata, entries + place)[0])
    return table + offset if offset else 0


# Rows that are decoded at a time: lists take several times their size meanwhile.
_ROWS_PER_BATCH = 8192
# A part is sealed long before; a few bytes of Parquet can stand for more than there is memory.
_MOST_VALUES_PER_PART = 2**28
_MOST_TEXT_BYTES_PER_PART = 2**31
_FILE = re.compile(r"(part|tail)-(\d{1,12})\.(parquet|arrow)")
_MOST_BYTES = 2**31  # of a part or a tail, which never is so large
_DIGEST = "crc32"
_SIGNATURE = b"mixer-crc32=%08x"
_UNSIGNED = _SIGNATURE % 0
_SIGNED = re.compile(re.escape(_UNSIGNED[:-8]) + rb"([0-9a-f]{8})")


def files_of(folder: Path, pattern: str) -> list[Path]:
    """Lists files of a table.

    Args:
        folder: The table's folder.
        pattern: Which ones.

    Returns:
        Their paths, in order; without those whose names were never given.
    """
    return sorted(path for path in folder.glob(pattern) if _FILE.fullmatch(path.name))


def number_of(path: Path) -> int:
    """Gives the number of a part or a tail."""
    return int(path.stem.split("-")[1])


def open_tail(file: Any, schema: pa.Schema) -> pa.ipc.RecordBatchStreamWriter:
    """Begins a tail, with a digest of its columns.

    Args:
        file: Where it is written.
        schema: The columns.

    Returns:
        What `write_rows` writes with.
    """
    return pa.ipc.new_stream(file, schema.with_metadata({_DIGEST: _digest_of(schema)}))


def write_rows(writer: pa.ipc.RecordBatchStreamWriter, rows: pa.RecordBatch) -> None:
    """Writes rows to a tail, with their digest.

    Args:
        writer: The tail's.
        rows: The rows.
    """
    writer.write_batch(rows, custom_metadata={_DIGEST: str(zlib.crc32(rows.serialize()))})


def write_part(path: Path, rows: pa.Table) -> None:
    """Writes a part so that it is there whole or not at all, with a digest of its bytes in its footer.

    Args:
        path: The part.
        rows: Its rows.
    """
    sink = pa.BufferOutputStream()
    pq.write_table(rows.replace_schema_metadata({_DIGEST: _UNSIGNED}), sink)
    whole = sink.getvalue().to_pybytes()
    before, _, behind = whole.rpartition(_UNSIGNED)  # what comes behind cannot hold it: names stand before
    temporary = path.with_suffix(".tmp")
    with temporary.open("wb") as file:
        file.write(before + _SIGNATURE % zlib.crc32(whole) + behind)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def read_columns(file: pa.NativeFile) -> pa.Schema:
    """Reads which columns a tail has, from its beginning.

    Args:
        file: The tail, at its beginning.

    Returns:
        The columns.

    Raises:
        ValueError: If they are not what was written.
        pa.ArrowException, OSError: If the beginning is torn.
    """
    found = pa.ipc.read_schema(file)
    if (found.metadata or {}).get(_DIGEST.encode(), _digest_of(found)) != _digest_of(found):
        raise ValueError("its columns are not what was written")
    return found


def read_tail(path: Path, schema: pa.Schema) -> pa.Table:
    """Reads a tail up to where it is whole.

    Args:
        path: The tail.
        schema: Columns and types of the table; columns that it lacks are left out.

    Returns:
        Its rows.

    Raises:
        ValueError: If what is there is not what was written; the file is named.
    """
    found, batches = schema, []
    torn = contextlib.suppress(pa.ArrowException, OSError, EOFError, MemoryError)
    with naming(path), torn, opened(path) as file:
        found = read_columns(file)
        while (batch := next_batch(file, found)) is not None:
            batches.append(batch)  # what was read before a torn end is kept
    with naming(path):
        for batch, digest in zip(batches, _digests(path), strict=False):
            if digest is not None and digest != str(zlib.crc32(batch.serialize())).encode():
                raise ValueError("its rows are not what was written")
        tail = pa.Table.from_batches(batches, schema=found)
        problem = find_misfit(tail, schema)
        if problem is not None:
            raise ValueError(problem)
    return tail


@contextlib.contextmanager
def opened(path: Path) -> Iterator[pa.NativeFile]:
    """Opens a tail, if it is a plain file.

    Args:
        path: The tail.

    Yields:
        The file, at its beginning.

    Raises:
        OSError: If there is none.
        ValueError: If it is something else, or larger than a tail ever is.
    """
    check_plain(path, _MOST_BYTES)
    with pa.OSFile(str(path)) as file:
        yield file


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
    with naming(path):
        rows = _read_parquet(path, schema.names)
        problem = find_misfit(rows, schema)
        if problem is not None:
            raise ValueError(problem)
    return rows


def num_rows_of(path: Path) -> int:
    """Counts the rows of a sealed part, without reading them.

    Args:
        path: The part.

    Returns:
        How many there are.

    Raises:
        ValueError: If it is damaged; its file is named.
    """
    with naming(path):
        check_plain(path, _MOST_BYTES)
        return int(pq.read_metadata(path).num_rows)


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
    twice = [field.name for field in present if rows.schema.names.count(field.name) > 1]
    if twice:
        return f"it has the column {twice[0]!r} more than once"
    for field in present:
        expected = schema.field(field.name).type
        if field.type != expected:
            return f"its column {field.name!r} is of {field.type} instead of {expected}"
        if rows.column(field.name).null_count and not pa.types.is_list(expected):
            return f"its column {field.name!r} has rows without a value"
    missing = set(schema.names) - set(rows.column_names)
    return f"it has no column {min(missing)!r}" if missing else None


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """Says of which file it is when one is found to be damaged.

    Args:
        path: The file.

    Raises:
        ValueError: If what is done with it ends in one of the errors that damage ends in.
    """
    try:
        yield
    except (pa.ArrowException, OSError, MemoryError, ValueError) as error:
        reason = "a name in it is no text" if isinstance(error, UnicodeDecodeError) else str(error).splitlines()[0]
        raise ValueError(
            f"{path} is damaged ({reason}): what a ledger recorded in that part is lost. Move the file away to read "
            "the rest."
        ) from None


def _read_parquet(path: Path, names: Sequence[str]) -> pa.Table:
    """Reads columns; texts by their different values, which may be few and long."""
    whole = pa.BufferReader(_read_signed(path))
    texts = [field.name for field in pq.read_schema(whole) if field.type == pa.string() and field.name in names]
    with pq.ParquetFile(whole, read_dictionary=texts) as part:
        fields = [field for field in part.schema_arrow if field.name in names]
        # Nothing is asked of single columns' metadata: where they are damaged, Arrow ends the process.
        num_values = part.metadata.num_rows * max(1, len(fields))
        if num_values > _MOST_VALUES_PER_PART:
            raise ValueError(f"it stands for {num_values:,} values, more than are ever sealed into a part")
        batches, num_bytes = [], 0
        for batch in part.iter_batches(_ROWS_PER_BATCH, columns=[field.name for field in fields]):
            num_bytes += sum(_text_bytes(batch.column(name)) for name in texts)
            if num_bytes > _MOST_TEXT_BYTES_PER_PART:
                raise ValueError(f"it stands for {num_bytes:,} bytes of text, more than are ever sealed into a part")
            batches.append(_written_out(batch, texts))
    types = [pa.field(field.name, pa.string()) if field.name in texts else field for field in fields]
    return pa.Table.from_batches(batches, pa.schema(types))


def _read_signed(path: Path) -> bytes:
    """Reads a part's bytes, and compares them with their digest."""
    whole = read_bytes(path, _MOST_BYTES)
    for found in [*_SIGNED.finditer(whole)][-1:]:
        unsigned = whole[: found.start()] + _UNSIGNED + whole[found.end() :]
        if int(found[1], 16) != zlib.crc32(unsigned):
            raise ValueError("it is not what was written")
    return whole


def _text_bytes(column: pa.DictionaryArray) -> int:
    """Counts the bytes that a column takes when it is written out; its different values are checked."""
    column.dictionary.validate(full=True)
    return int(pc.sum(pc.binary_length(column.dictionary).take(column.indices)).as_py() or 0)


def _written_out(batch: pa.RecordBatch, texts: Sequence[str]) -> pa.RecordBatch:
    for name in texts:
        place = batch.schema.get_field_index(name)
        batch = batch.set_column(place, name, batch.column(place).dictionary_decode())
    return batch


def _digest_of(schema: pa.Schema) -> bytes:
    """Gives a digest of columns, without which one whose name was damaged would count as not written."""
    columns = ";".join(f"{name}:{kind}" for name, kind in zip(schema.names, schema.types, strict=True))
    return str(zlib.crc32(columns.encode())).encode()


def _digests(path: Path) -> Iterator[bytes | None]:
    """Gives the digests of the rows of a tail whose batches were found whole."""
    with contextlib.suppress(pa.ArrowException, OSError, EOFError), opened(path) as file:
        for _, notes in pa.ipc.open_stream(file).iter_batches_with_custom_metadata():
            yield (notes or {}).get(_DIGEST.encode())
