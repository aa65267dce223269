"""Arrow's stream of record batches, read from files that anyone may have written."""

import struct

import pyarrow as pa

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
