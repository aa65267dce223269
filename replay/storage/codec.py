"""Rows as bytes and back, exactly: a short JSON header of nested nodes, then the raw memory of what is large.

A node is a plain JSON value (`None`, a bool, an int of 64 bits, a finite float, an ASCII text), or a list that begins
with a tag. Bytes of tagged nodes follow the header in the order in which the nodes stand there.
"""

import json
import math
import struct
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from mixer.utils.bounded import DAMAGE
from replay.storage.image_bytes import encode_image, is_image
from replay.storage.node_reader import NodeReader
from replay.storage.rows import Row

# What stands around a value, and how it is reached from there.
_Place = tuple[Any, str]
_Buffers = list[bytes]

_KEPT = (
    "dicts, lists and tuples of torch tensors (dense), numpy arrays and scalars (without objects or fields), PIL "
    "images, and Python's bool, int, float, str, bytes and None can be kept, of just these types (of subclasses only "
    "mappings with names for keys, which come back as dicts)"
)
_to_json = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode
_from_json = json.JSONDecoder().decode


def encode(row: Row) -> bytes:
    """Encodes a row.

    Args:
        row: The row; nothing of it is shared with the result. Tensors lose their device and gradients, and mappings
            with names for keys (`OrderedDict`, `BatchEncoding`) become dicts.

    Returns:
        The bytes.

    Raises:
        TypeError: If something in it cannot be kept; the message names its place, such as `sample['meta'][0]`.
    """
    buffers: _Buffers = []
    nodes = [_encode(row.sample, (None, "sample"), buffers), _encode(dict(row.payload), (None, "payload"), buffers)]
    header = _to_json(nodes).encode("ascii")
    return b"".join((len(header).to_bytes(4, "little"), header, *buffers))


def decode(content: Any) -> Row:
    """Decodes a row.

    Args:
        content: What `encode` gave, as any buffer.

    Returns:
        An equal row of its own memory; tensors are on the CPU.

    Raises:
        ValueError: If it is none of these bytes.
    """
    view = memoryview(content)
    end = 4 + int.from_bytes(view[:4], "little")
    try:
        sample, payload = _from_json(str(view[4:end], "ascii"))
        reader = NodeReader(view, end)
        return Row(reader.read(sample), reader.read(payload))
    except (ValueError, RuntimeError, OSError, struct.error, *DAMAGE) as error:
        raise ValueError(f"A row of a buffer is damaged ({error}). Load an earlier checkpoint.") from error


def _encode(value: Any, place: _Place, buffers: _Buffers) -> Any:
    write = _WRITERS.get(type(value))
    if write is not None:
        return write(value, place, buffers)
    if isinstance(value, np.generic):
        return ["scalar", _name_of(value.dtype, place), _add(value.tobytes(), buffers)]
    if is_image(value):
        about, content = encode_image(value)
        return ["image", about, _add(content, buffers)]
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return _encode_dict(value, place, buffers)
    raise _error(f"a {type(value).__module__}.{type(value).__qualname__}", place)


def _encode_int(value: int, place: _Place, buffers: _Buffers) -> Any:
    return value if -(2**63) <= value < 2**63 else ["int", hex(value)]  # Python limits the digits of decimal ones


def _encode_float(value: float, place: _Place, buffers: _Buffers) -> Any:
    return value if math.isfinite(value) else ["float", struct.pack("<d", value).hex()]


def _encode_text(value: str, place: _Place, buffers: _Buffers) -> Any:
    return value if value.isascii() else ["text", _add(value.encode("utf-8", "surrogatepass"), buffers)]


def _encode_bytes(value: bytes, place: _Place, buffers: _Buffers) -> Any:
    return ["bytes", _add(value, buffers)]


def _encode_list(value: list[Any], place: _Place, buffers: _Buffers) -> Any:
    types = set(map(type, value))
    if types == {int} and min(value) >= -(2**63) and max(value) < 2**63:  # token ids, and quickly
        return ["ints", _add(np.array(value, dtype=np.int64).tobytes(), buffers)]
    if types == {float}:
        return ["floats", _add(np.array(value, dtype=np.float64).tobytes(), buffers)]
    return ["list", *(_encode(item, (place, f"[{index}]"), buffers) for index, item in enumerate(value))]


def _encode_tuple(value: tuple[Any, ...], place: _Place, buffers: _Buffers) -> Any:
    return ["tuple", *(_encode(item, (place, f"[{index}]"), buffers) for index, item in enumerate(value))]


def _encode_dict(value: Mapping[Any, Any], place: _Place, buffers: _Buffers) -> Any:
    node: list[Any] = ["dict"]
    for key, item in value.items():
        inner = (place, f"[{key!r}]")
        node += (_encode(key, inner, buffers), _encode(item, inner, buffers))
    return node


def _encode_numpy_text(value: np.str_, place: _Place, buffers: _Buffers) -> Any:
    return ["numpy text", _add(str(value).encode("utf-8", "surrogatepass"), buffers)]  # an array cuts zeros off its end


def _encode_numpy_bytes(value: np.bytes_, place: _Place, buffers: _Buffers) -> Any:
    return ["numpy bytes", _add(bytes(value), buffers)]


def _encode_array(value: np.ndarray[Any, Any], place: _Place, buffers: _Buffers) -> Any:
    return ["array", _name_of(value.dtype, place), value.shape, _add(value.tobytes(), buffers)]


def _encode_tensor(value: torch.Tensor, place: _Place, buffers: _Buffers) -> Any:
    if value.layout is not torch.strided or value.is_quantized or value.is_meta:
        raise _error("a sparse, quantized or meta tensor", place)
    plain = value.detach().cpu().resolve_conj().resolve_neg().contiguous().reshape(-1)
    name = str(value.dtype).removeprefix("torch.")
    content = plain.view(torch.uint8).numpy().tobytes() if plain.numel() else b""
    return ["tensor", name, tuple(value.shape), _add(content, buffers)]


_WRITERS: dict[type, Callable[[Any, _Place, _Buffers], Any]] = {
    type(None): lambda value, place, buffers: value,
    bool: lambda value, place, buffers: value,
    int: _encode_int,
    float: _encode_float,
    str: _encode_text,
    bytes: _encode_bytes,
    list: _encode_list,
    tuple: _encode_tuple,
    dict: _encode_dict,
    np.str_: _encode_numpy_text,
    np.bytes_: _encode_numpy_bytes,
    np.ndarray: _encode_array,
    np.memmap: _encode_array,  # what indexing a mapped file gives
    torch.Tensor: _encode_tensor,
}


def _add(content: bytes, buffers: _Buffers) -> int:
    buffers.append(content)
    return len(content)


def _name_of(dtype: np.dtype[Any], place: _Place) -> str:
    if dtype.kind not in "biufcmMSUV" or dtype.hasobject or np.dtype(dtype.str) != dtype:
        raise _error(f"numpy's {dtype}", place)
    return dtype.str


def _error(found: str, place: _Place | None) -> TypeError:
    path = ""
    while place is not None:
        place, path = place[0], place[1] + path
    return TypeError(f"{path}: {found} cannot be kept in a buffer; {_KEPT}. Have the data set give one of these.")
