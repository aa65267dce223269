"""Digests of rows: equal rows have equal ones, in every process and however they are stored."""

import hashlib
import itertools
import marshal
import re
from collections.abc import Mapping
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from mixer.mixture.permutation import mix_bits
from mixer.utils.arrays import Int64Array, UInt64Array

_ROWS_AT_ONCE = 10_000
_NULL = np.uint64(0x9E3779B97F4A7C15)  # the digest of a missing value
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
_PLAIN = {bool, int, float, str, bytes, type(None)}


def row_digests(dataset: Any, indices: Int64Array) -> UInt64Array:
    """Computes a digest of each row from the names and values of all its columns.

    Rows of a `datasets.Dataset` are read as they are stored: no format, transform or decoding applies. Integers of all
    widths are alike, and so are fractions, texts and lists. Rows of other data sets are read one by one, see `digest`.

    Args:
        dataset: A map-style data set.
        indices: int64 `[num_rows]`.

    Returns:
        uint64 `[num_rows]`. Two of a million different rows have the same one with probability 3e-8.
    """
    if type(dataset) is not datasets.Dataset:  # other classes may make their rows
        return np.array([digest(dataset[index]) for index in indices.tolist()], np.uint64)
    rows = dataset.with_format("arrow")
    parts = (indices[start : start + _ROWS_AT_ONCE] for start in range(0, len(indices), _ROWS_AT_ONCE))
    return np.concatenate([np.empty(0, np.uint64), *(_of_table(rows[_as_range(part)]) for part in parts)])


def digest(content: Any) -> int:
    """Computes a digest of content, the same for a list, an array and a tensor of the same numbers.

    Args:
        content: Plain data, arrays and tensors; another object counts by its `tobytes()`, else by its `repr`
            without addresses in memory.

    Returns:
        An unsigned 64-bit integer.

    Example:
        >>> digest({"input_ids": [1, 2]}) == digest({"input_ids": (1, 2)})
        True
    """
    raw = marshal.dumps(_plain(content), 2)  # version 2 writes no references: equal content, equal bytes
    return int.from_bytes(hashlib.blake2b(raw, digest_size=8).digest(), "little")


def _plain(content: Any) -> Any:
    if isinstance(content, Mapping):
        return {str(name): _plain(content[name]) for name in sorted(content, key=str)}
    if hasattr(content, "tolist"):
        content = content.tolist()
    if isinstance(content, list | tuple):
        return list(content) if set(map(type, content)) <= _PLAIN else [_plain(value) for value in content]
    if type(content) in _PLAIN:
        return content
    if isinstance(content, set | frozenset):
        return sorted(digest(value) for value in content)  # their order differs from process to process
    return content.tobytes() if hasattr(content, "tobytes") else _ADDRESS.sub("", repr(content))


def _as_range(indices: Int64Array) -> Any:
    """Returns rows that follow one another as a slice, which `datasets` reads without a copy."""
    first, last = int(indices[0]), int(indices[-1]) + 1
    return slice(first, last) if last - first == len(indices) and (np.diff(indices) == 1).all() else indices


def _of_table(table: pa.Table) -> UInt64Array:
    columns = {name: _digests(table.column(name).combine_chunks()) for name in table.column_names}
    return _combined(columns, len(table))


def _combined(columns: Mapping[str, UInt64Array], num_rows: int) -> UInt64Array:
    """Combines the digests of columns to those of rows; the order of columns does not count."""
    digests = np.zeros(num_rows, np.uint64)
    for name, column in columns.items():
        digests += mix_bits((column ^ np.uint64(digest(name))) + _NULL)  # mixed, so that a sum is a digest, too
    return digests


def _digests(values: Any) -> UInt64Array:
    """Computes the digests of the values of an Arrow array."""
    kind = values.type
    if isinstance(values, pa.ChunkedArray):
        return np.concatenate([np.empty(0, np.uint64), *map(_digests, values.chunks)])
    if isinstance(values, pa.ExtensionArray):
        return _digests(values.storage)
    if pa.types.is_dictionary(kind):
        return _digests(values.dictionary_decode())
    if pa.types.is_struct(kind):
        parts = [kind.field(place).name for place in range(kind.num_fields)]
        found = _combined(dict(zip(parts, map(_digests, values.flatten()), strict=True)), len(values))
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        found = _of_lists(values)
    else:
        found = _of_scalars(values)
    if values.null_count:
        found[pc.is_null(values).to_numpy(zero_copy_only=False)] = _NULL
    return found


def _of_lists(lists: Any) -> UInt64Array:
    if pa.types.is_fixed_size_list(lists.type):
        size = lists.type.list_size
        ends = np.arange(len(lists) + 1, dtype=np.int64) * size + lists.offset * size
    else:
        ends = lists.offsets.to_numpy().astype(np.int64)
    values = lists.values.slice(ends[0], ends[-1] - ends[0])
    numbers = _as_words(values) if _is_number(values.type) and not values.null_count else None
    return _of_slices(_digests(values) if numbers is None else numbers, (ends - ends[0]) * 8)


def _of_scalars(values: Any) -> UInt64Array:
    if pa.types.is_null(values.type):
        return np.full(len(values), _NULL)
    if _is_number(values.type):
        return mix_bits(_as_words(values) + _NULL)
    if not (pa.types.is_binary(values.type) or pa.types.is_large_binary(values.type)):
        values = values.cast(pa.large_string())
    values = values.cast(pa.large_binary())
    _, ends, content = values.buffers()
    places = np.frombuffer(ends, np.int64)[values.offset : values.offset + len(values) + 1]
    return _of_slices(b"" if content is None else content, places)


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_primitive(kind)) and not pa.types.is_decimal(kind)


def _as_words(values: Any) -> UInt64Array:
    """Returns numbers and times as words of 64 bits; a missing one is 0."""
    if pa.types.is_floating(values.type):
        numbers = values.cast(pa.float64()).fill_null(0.0).to_numpy() + 0.0  # -0.0 is 0.0
        return np.ascontiguousarray(np.where(np.isnan(numbers), np.nan, numbers)).view(np.uint64)
    if not (pa.types.is_integer(values.type) or pa.types.is_boolean(values.type)):
        values = values.view(pa.int32() if values.type.bit_width == 32 else pa.int64())
    whole: NDArray[Any] = values.cast(pa.int64(), safe=False).fill_null(0).to_numpy()
    return np.ascontiguousarray(whole).view(np.uint64)


def _of_slices(content: Any, ends: Int64Array) -> UInt64Array:
    """Computes the digest of each slice of bytes between two ends."""
    raw, places = memoryview(content).cast("B"), ends.tolist()
    blake = hashlib.blake2b
    pairs = itertools.pairwise(places)
    digests = b"".join([blake(raw[start:end], digest_size=8).digest() for start, end in pairs])
    return np.frombuffer(digests, "<u8").astype(np.uint64)
