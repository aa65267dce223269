"""Files of a table: sealed parts in Parquet, and a growing tail of Arrow record batches, both with digests."""

import contextlib
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from mixer.utils.errors import InvalidValueError
from mixer.utils.files import new_file, sync_descriptor
from mixer.utils.validation import check_plain, read_bytes

_FILE = re.compile(r"(part|tail)-(\d{1,12})\.(parquet|arrow)")
_MOST_BYTES = 2**31  # of a part or a tail; they are sealed long before
_DIGEST = "crc32"
_SIGNATURE = b"mixer-crc32=%08x"
_UNSIGNED = _SIGNATURE % 0
_SIGNED = re.compile(re.escape(_UNSIGNED[:-8]) + rb"([0-9a-f]{8})")


class OtherVersionError(ValueError):
    """A table has other columns than this version writes."""


def files_of(folder: Path, pattern: str) -> list[Path]:
    """Lists the files of a table that match a glob pattern, in order."""
    return sorted(path for path in folder.glob(pattern) if _FILE.fullmatch(path.name))


def number_of(path: Path) -> int:
    """Returns the number of a part or a tail."""
    return int(path.stem.split("-")[1])


def open_tail(file: Any, schema: pa.Schema) -> pa.ipc.RecordBatchStreamWriter:
    """Starts a tail with a digest of its columns, and returns its writer for `write_rows`."""
    return pa.ipc.new_stream(file, schema.with_metadata({_DIGEST: _digest_of(schema)}))


def write_rows(writer: pa.ipc.RecordBatchStreamWriter, rows: pa.RecordBatch) -> None:
    """Appends rows and their digest to a tail."""
    writer.write_batch(rows, custom_metadata={_DIGEST: str(zlib.crc32(rows.serialize()))})


def write_part(path: Path, rows: pa.Table) -> None:
    """Writes a part atomically, with a digest of its bytes in its footer."""
    sink = pa.BufferOutputStream()
    pq.write_table(rows.replace_schema_metadata({_DIGEST: _UNSIGNED}), sink)
    content = sink.getvalue().to_pybytes()
    before, _, after = content.rpartition(_UNSIGNED)  # column names come before the metadata
    temporary = path.with_suffix(".tmp")
    with new_file(temporary) as file:
        file.write(before + _SIGNATURE % zlib.crc32(content) + after)
        file.flush()
        sync_descriptor(file.fileno(), temporary)
    temporary.replace(path)


def read_tail(path: Path, schema: pa.Schema) -> pa.Table:
    """Reads a tail up to the first incomplete batch.

    Args:
        path: Tail.
        schema: Columns and types of the table.

    Raises:
        ValueError: If its content does not match its digests; the message names the file.
    """
    written, batches = schema, []
    incomplete = contextlib.suppress(pa.ArrowException, OSError, EOFError, MemoryError)
    with naming(path), incomplete:
        check_plain(path, _MOST_BYTES)
        with pa.OSFile(str(path)) as file, pa.ipc.open_stream(file) as reader:
            written = reader.schema
            if (written.metadata or {}).get(_DIGEST.encode(), _digest_of(written)) != _digest_of(written):
                raise ValueError("its columns are not what was written")
            for batch, metadata in reader.iter_batches_with_custom_metadata():
                batch.validate(full=True)
                digest = (metadata or {}).get(_DIGEST.encode())
                if digest is not None and digest != str(zlib.crc32(batch.serialize())).encode():
                    raise ValueError("its rows are not what was written")
                batches.append(batch)
    with naming(path):
        return checked(pa.Table.from_batches(batches, schema=written), schema)


def read_part(path: Path, schema: pa.Schema) -> pa.Table:
    """Reads the columns of `schema` from a sealed part.

    Raises:
        ValueError: If the part is damaged; the message names the file.
    """
    with naming(path), pq.ParquetFile(pa.BufferReader(_read_signed(path))) as part:
        names = [name for name in part.schema_arrow.names if name in schema.names]
        return checked(part.read(names).replace_schema_metadata(None), schema)


def num_rows_of(path: Path) -> int:
    """Counts the rows of a sealed part without reading them; raises a `ValueError` as `read_part` does."""
    with naming(path):
        check_plain(path, _MOST_BYTES)
        return int(pq.read_metadata(path).num_rows)


def checked(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Returns the rows; raises a `ValueError` on the first column that is missing (of another version) or wrong."""
    for field in schema:
        if field.name not in rows.column_names:
            raise OtherVersionError(f"it has no column {field.name!r}")
        column = rows.column(field.name)
        if column.type != field.type:
            raise ValueError(f"its column {field.name!r} is of {column.type} instead of {field.type}")
        if column.null_count and not pa.types.is_list(field.type):
            raise ValueError(f"its column {field.name!r} has rows without a value")
    return rows


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """Raises a `ValueError` that names the file if reading it in the context shows that it is damaged."""
    try:
        yield
    except (pa.ArrowException, OSError, MemoryError, ValueError) as error:
        reason = "a name in it is no text" if isinstance(error, UnicodeDecodeError) else str(error).splitlines()[0]
        if isinstance(error, OtherVersionError):
            raise InvalidValueError(
                f"{path} was written by another version of adaptive-mixer ({reason}): read it with that version, which "
                "ledger.json names, or move it away to read the rest of the ledger.",
                option=path.name,
                found=reason,
            ) from None
        raise InvalidValueError(
            f"{path} is damaged ({reason}): its rows are lost. Move the file away to read the rest of the ledger.",
            option=path.name,
            found=reason,
        ) from None


def _read_signed(path: Path) -> bytes:
    """Reads the bytes of a part and compares them with their digest."""
    content = read_bytes(path, _MOST_BYTES)
    for match in [*_SIGNED.finditer(content)][-1:]:
        unsigned = content[: match.start()] + _UNSIGNED + content[match.end() :]
        if int(match[1], 16) != zlib.crc32(unsigned):
            raise ValueError("it is not what was written")
    return content


def _digest_of(schema: pa.Schema) -> bytes:
    """Returns a digest of the columns: one with a damaged name would otherwise count as missing."""
    columns = ";".join(f"{name}:{kind}" for name, kind in zip(schema.names, schema.types, strict=True))
    return str(zlib.crc32(columns.encode())).encode()
