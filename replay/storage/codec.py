"""Exact encoding of rows as bytes: a JSON header of nested nodes, then the raw memory of large values."""

import io
import json
import math
import struct
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from mixer.utils.validation import DAMAGE

# PNG keeps the pixels of these as they are; it would round or convert those of others, which are kept raw.
_PNG_MODES = frozenset({"1", "L", "LA", "RGB", "RGBA"})
_KEPT = (
    "dicts, lists and tuples of torch tensors (dense), numpy arrays and scalars (without objects or fields), PIL "
    "images, and Python's bool, int, float, str, bytes and None can be kept, of just these types (of subclasses only "
    "mappings with names for keys, which come back as dicts)"
)
_to_json = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode
_from_json = json.JSONDecoder().decode


@dataclass(frozen=True)
class Row:
    """The stored data of one sample.

    Args:
        sample: The sample as its data set returned it; `None` if only a reference is stored.
        payload: Extra arrays for a method, such as `"logits"`; any shape and type.
    """

    sample: Any = None
    payload: Mapping[str, NDArray[Any]] = field(default_factory=dict)


def encode_image(image: Any) -> tuple[Any, bytes]:
    """Encodes mode, size, pixels and palette of an image; returns JSON-safe metadata and the bytes."""
    about = {"mode": image.mode, "size": image.size}
    if image.mode in _PNG_MODES and 0 not in image.size:
        content = io.BytesIO()
        image.save(content, format="PNG", compress_level=1)
        return about, content.getvalue()
    if image.mode == "P":
        clear = image.info.get("transparency")
        palette = image.im.getpalettemode()
        about |= {"palette": [image.getpalette(palette), palette], "is_clear_list": isinstance(clear, bytes)}
        about["clear"] = list(clear) if isinstance(clear, bytes) else clear
    return about | {"is_raw": True}, image.tobytes()


def decode_image(about: Any, content: memoryview) -> Any:
    """Decodes an image from the metadata and bytes of `encode_image`."""
    from PIL import Image

    if not about.get("is_raw"):
        with Image.open(io.BytesIO(content), formats=("PNG",)) as png:
            return png.copy()
    if math.prod(about["size"]) > len(content):  # every raw mode takes a byte a pixel or more
        raise ValueError(f"{len(content)} bytes are no picture of {about['size']}")
    image = Image.frombytes(about["mode"], tuple(about["size"]), bytes(content))
    if "palette" in about:
        image.putpalette(*about["palette"])
    if about.get("clear") is not None:
        image.info["transparency"] = bytes(about["clear"]) if about["is_clear_list"] else about["clear"]
    return image


_TORCH_DTYPES = {
    str(kind).removeprefix("torch."): kind for kind in vars(torch).values() if isinstance(kind, torch.dtype)
}


class NodeReader:
    """Decodes nodes of the header in order, and the bytes that follow the header at `start`."""

    def __init__(self, view: memoryview, start: int):
        self._view, self._at = view, start

    def read(self, node: Any) -> Any:
        """Decodes a node, after all nodes before it."""
        return _READERS[node[0]](self, node) if type(node) is list else node

    def take(self, num_bytes: int) -> memoryview:
        """Returns the next bytes, as a view."""
        if type(num_bytes) is not int or not 0 <= num_bytes <= len(self._view) - self._at:
            raise ValueError(f"{num_bytes!r} bytes are asked for, and {len(self._view) - self._at} are left")
        self._at += num_bytes
        return self._view[self._at - num_bytes : self._at]

    def read_dict(self, nodes: Sequence[Any]) -> dict[Any, Any]:
        """Reads keys and values, in turn."""
        items = [self.read(node) for node in nodes]
        return dict(zip(items[::2], items[1::2], strict=True))

    def read_array(self, name: str, shape: Any, num_bytes: int) -> NDArray[Any]:
        """Reads a numpy array; numpy refuses objects, whose bytes would be addresses in memory, and wrong shapes."""
        content = bytearray(self.take(num_bytes))
        return (np.frombuffer(content, name) if content else np.empty(0, name)).reshape(shape)

    def read_tensor(self, name: str, shape: Any, num_bytes: int) -> torch.Tensor:
        """Reads a torch tensor into memory of torch, whose alignment is that of any new tensor."""
        content, dtype = bytearray(self.take(num_bytes)), _TORCH_DTYPES[name]
        if not content:
            return torch.empty(0, dtype=dtype).reshape(shape)
        return torch.frombuffer(content, dtype=torch.uint8).clone().view(dtype).reshape(shape)


_READERS: dict[str, Callable[[NodeReader, Any], Any]] = {
    "int": lambda _reader, node: int(node[1], 16),
    "float": lambda _reader, node: struct.unpack("<d", bytes.fromhex(node[1]))[0],
    "text": lambda reader, node: str(reader.take(node[1]), "utf-8", "surrogatepass"),
    "bytes": lambda reader, node: bytes(reader.take(node[1])),
    "ints": lambda reader, node: np.frombuffer(reader.take(node[1]), dtype=np.int64).tolist(),
    "floats": lambda reader, node: np.frombuffer(reader.take(node[1]), dtype=np.float64).tolist(),
    "list": lambda reader, node: [reader.read(item) for item in node[1:]],
    "tuple": lambda reader, node: tuple([reader.read(item) for item in node[1:]]),
    "dict": lambda reader, node: reader.read_dict(node[1:]),
    "numpy text": lambda reader, node: np.str_(str(reader.take(node[1]), "utf-8", "surrogatepass")),
    "numpy bytes": lambda reader, node: np.bytes_(bytes(reader.take(node[1]))),
    "scalar": lambda reader, node: reader.read_array(node[1], (), node[2])[()],
    "array": lambda reader, node: reader.read_array(*node[1:]),
    "tensor": lambda reader, node: reader.read_tensor(*node[1:]),
    "image": lambda reader, node: decode_image(node[1], reader.take(node[2])),
}


class NodeWriter:
    """Encodes values as nodes of the header, and collects the bytes that follow it."""

    def __init__(self) -> None:
        self.buffers: list[bytes] = []
        self._path: list[str] = []  # of the present value, such as `sample['meta'][0]`

    def write(self, value: Any, step: str) -> Any:
        """Encodes a value; `step` leads to it from the one around it."""
        self._path.append(step)
        write = _WRITERS.get(type(value))
        node = self._write_other(value) if write is None else write(self, value)
        self._path.pop()
        return node

    def add(self, content: bytes) -> int:
        """Adds bytes, and returns their number."""
        self.buffers.append(content)
        return len(content)

    def write_items(self, values: Sequence[Any]) -> list[Any]:
        """Encodes the items of a sequence."""
        return [self.write(item, f"[{index}]") for index, item in enumerate(values)]

    def write_list(self, value: list[Any]) -> Any:
        """Encodes a list; one of numbers, such as token ids, quickly."""
        types = set(map(type, value))
        if types == {int} and min(value) >= -(2**63) and max(value) < 2**63:
            return ["ints", self.add(np.array(value, dtype=np.int64).tobytes())]
        if types == {float}:
            return ["floats", self.add(np.array(value, dtype=np.float64).tobytes())]
        return ["list", *self.write_items(value)]

    def write_dict(self, value: Mapping[Any, Any]) -> Any:
        """Encodes keys and values, in turn."""
        node: list[Any] = ["dict"]
        for key, item in value.items():
            node += (self.write(key, f"[{key!r}]"), self.write(item, f"[{key!r}]"))
        return node

    def write_array(self, value: np.ndarray[Any, Any]) -> Any:
        """Encodes a numpy array."""
        return ["array", self._name_of(value.dtype), value.shape, self.add(value.tobytes())]

    def write_tensor(self, value: torch.Tensor) -> Any:
        """Encodes a torch tensor."""
        if value.layout is not torch.strided or value.is_quantized or value.is_meta:
            raise self._error("a sparse, quantized or meta tensor")
        plain = value.detach().cpu().resolve_conj().resolve_neg().contiguous().reshape(-1)
        name = str(value.dtype).removeprefix("torch.")
        content = plain.view(torch.uint8).numpy().tobytes() if plain.numel() else b""
        return ["tensor", name, tuple(value.shape), self.add(content)]

    def _write_other(self, value: Any) -> Any:
        if isinstance(value, np.generic):
            return ["scalar", self._name_of(value.dtype), self.add(value.tobytes())]
        image = sys.modules.get("PIL.Image")
        if image is not None and isinstance(value, image.Image) and value.mode != "PA":
            about, content = encode_image(value)
            return ["image", about, self.add(content)]
        if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
            return self.write_dict(value)
        raise self._error(f"a {type(value).__module__}.{type(value).__qualname__}")

    def _name_of(self, dtype: np.dtype[Any]) -> str:
        if dtype.kind not in "biufcmMSUV" or dtype.hasobject or np.dtype(dtype.str) != dtype:
            raise self._error(f"numpy's {dtype}")
        return dtype.str

    def _error(self, found: str) -> TypeError:
        path = "".join(self._path)
        return TypeError(f"{path}: {found} cannot be kept in a buffer; {_KEPT}. Have the data set give one of these.")


_WRITERS: dict[type, Callable[[NodeWriter, Any], Any]] = {
    type(None): lambda _writer, value: value,
    bool: lambda _writer, value: value,
    # Python limits the digits of decimal numbers.
    int: lambda _writer, value: value if -(2**63) <= value < 2**63 else ["int", hex(value)],
    float: lambda _writer, value: value if math.isfinite(value) else ["float", struct.pack("<d", value).hex()],
    str: lambda writer, value: (
        value if value.isascii() else ["text", writer.add(value.encode("utf-8", "surrogatepass"))]
    ),
    bytes: lambda writer, value: ["bytes", writer.add(value)],
    list: NodeWriter.write_list,
    tuple: lambda writer, value: ["tuple", *writer.write_items(value)],
    dict: NodeWriter.write_dict,
    # An array cuts zeros off its end.
    np.str_: lambda writer, value: ["numpy text", writer.add(value.encode("utf-8", "surrogatepass"))],
    np.bytes_: lambda writer, value: ["numpy bytes", writer.add(bytes(value))],
    np.ndarray: NodeWriter.write_array,
    np.memmap: NodeWriter.write_array,  # what indexing a mapped file gives
    torch.Tensor: NodeWriter.write_tensor,
}


def encode(row: Row) -> bytes:
    """Encodes a row; the result shares no memory with it.

    Tensors lose their device and gradients, and mappings with string keys (`OrderedDict`, `BatchEncoding`) become
    dicts.

    Raises:
        TypeError: If a value has an unsupported type; the message names its place, such as `sample['meta'][0]`.
    """
    writer = NodeWriter()
    header = _to_json([writer.write(row.sample, "sample"), writer.write(dict(row.payload), "payload")]).encode("ascii")
    return b"".join((len(header).to_bytes(4, "little"), header, *writer.buffers))


def decode(content: Any) -> Row:
    """Decodes the result of `encode`, given as any buffer.

    Returns:
        An equal row with its own memory; tensors are on the CPU.

    Raises:
        ValueError: If the bytes are damaged.
    """
    view = memoryview(content)
    end = 4 + int.from_bytes(view[:4], "little")
    try:
        sample, payload = _from_json(str(view[4:end], "ascii"))
        reader = NodeReader(view, end)
        return Row(reader.read(sample), reader.read(payload))
    except (ValueError, RuntimeError, OSError, SyntaxError, struct.error, *DAMAGE) as error:  # numpy parses types
        raise ValueError(f"A row of a buffer is damaged ({error}). Load an earlier checkpoint.") from error
