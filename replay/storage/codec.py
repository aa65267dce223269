"""Rows as columns of Arrow: JSON for structure and plain values, and the bytes of all else."""

import hashlib
import io
import json
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from mixer.utils.errors import InvalidTypeError, InvalidValueError
from mixer.utils.validation import DAMAGE

_PLAIN = frozenset({type(None), bool, int, float, str})
_MARK = ""  # the only key of an object that stands for what JSON lacks
# PNG keeps the pixels of these as they are; it would round or convert those of others, which are kept raw.
_PNG_MODES = frozenset({"1", "L", "LA", "RGB", "RGBA"})
_KEPT = (
    "dicts, lists and tuples of torch tensors (dense), numpy arrays and scalars (without objects or fields), PIL "
    "images, and Python's bool, int, float, str, bytes and None, of just these types (of subclasses only mappings, "
    "which come back as dicts)"
)
_TORCH_DTYPES = {
    str(kind).removeprefix("torch."): kind for kind in vars(torch).values() if isinstance(kind, torch.dtype)
}
_to_json = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode


@dataclass(frozen=True)
class Row:
    """The stored data of one sample.

    Args:
        sample: The sample as its data set returned it; `None` if only a reference is stored.
        payload: Extra arrays for a method, such as `"logits"`; any shape and type.
    """

    sample: Any = None
    payload: Mapping[str, NDArray[Any]] = field(default_factory=dict)


class EncodedRow(NamedTuple):
    """A row in the form of an Arrow file.

    Args:
        form: JSON of sample and payload; `{"": [kind, ...]}` stands for what JSON lacks.
        data: The bytes that `form` refers to by their places.
    """

    form: str
    data: Sequence[bytes]

    @property
    def num_bytes(self) -> int:
        """Its size."""
        return len(self.form) + sum(map(len, self.data))

    @property
    def digest(self) -> str:
        """A text by which equal rows are recognised."""
        lengths = " ".join(str(len(content)) for content in self.data)
        return hashlib.blake2b(b"".join((f"{lengths} {self.form}".encode(), *self.data)), digest_size=16).hexdigest()


class _Writer:
    """Makes JSON-safe values, and collects the bytes that they refer to."""

    def __init__(self) -> None:
        self.data: list[bytes] = []

    def write(self, value: Any, path: str) -> Any:
        """Returns a value as JSON holds it; `path` leads to it, such as `sample['meta'][0]`."""
        kind = type(value)
        if kind in _PLAIN or (kind is list and _PLAIN.issuperset(map(type, value))):
            return value
        if kind in (list, tuple):
            items = [self.write(item, f"{path}[{place}]") for place, item in enumerate(value)]
            return items if kind is list else {_MARK: ["tuple", items]}
        if isinstance(value, Mapping):
            return self._write_mapping(value, path)
        if kind is bytes:
            return self._add("bytes", value)
        if kind is torch.Tensor:
            return self._write_tensor(value, path)
        if kind in (np.ndarray, np.memmap) or isinstance(value, np.generic):
            return self._write_array(value, path)
        image = sys.modules.get("PIL.Image")
        if image is not None and isinstance(value, image.Image) and value.mode != "PA":
            return self._write_image(value)
        raise _refusal(path, f"a {kind.__module__}.{kind.__qualname__}")

    def _add(self, kind: str, content: bytes, *facts: Any) -> Any:
        self.data.append(content)
        return {_MARK: [kind, len(self.data) - 1, *facts]}

    def _write_mapping(self, value: Mapping[Any, Any], path: str) -> Any:
        items = {key: self.write(item, f"{path}[{key!r}]") for key, item in value.items()}
        if _MARK not in items and all(type(key) is str for key in items):
            return items
        return {_MARK: ["dict", [[self.write(key, f"{path}[{key!r}]"), item] for key, item in items.items()]]}

    def _write_tensor(self, value: torch.Tensor, path: str) -> Any:
        if value.layout is not torch.strided or value.is_quantized or value.is_meta:
            raise _refusal(path, "a sparse, quantized or meta tensor")
        plain = value.detach().cpu().resolve_conj().resolve_neg().contiguous().reshape(-1)
        content = plain.view(torch.uint8).numpy().tobytes()
        return self._add("tensor", content, str(value.dtype).removeprefix("torch."), list(value.shape))

    def _write_array(self, value: Any, path: str) -> Any:
        if not _is_plain(value.dtype) or np.dtype(value.dtype.str) != value.dtype:
            raise _refusal(path, f"numpy's {value.dtype}")
        kind = "scalar" if isinstance(value, np.generic) else "array"
        return self._add(kind, value.tobytes(), value.dtype.str, list(value.shape))

    def _write_image(self, image: Any) -> Any:
        if image.mode in _PNG_MODES and 0 not in image.size:
            content = io.BytesIO()
            image.save(content, format="PNG", compress_level=1)
            return self._add("png", content.getvalue())
        palette = None
        if image.mode == "P":
            kind = image.im.getpalettemode()
            palette = [image.getpalette(kind), kind]
        clear = self.write(image.info.get("transparency"), "transparency")
        return self._add("image", image.tobytes(), image.mode, list(image.size), palette, clear)


def _is_plain(dtype: np.dtype[Any]) -> bool:
    """Whether the bytes of an array are its content; those of objects are addresses in memory."""
    return dtype.kind in "biufcmMSUV" and not dtype.hasobject and dtype.fields is None


def _refusal(path: str, found: str) -> InvalidTypeError:
    text = f"{found} cannot be kept in a buffer; what can: {_KEPT}. Have the data set give one of these."
    return InvalidTypeError(f"{path}: {text}", option=path, found=found)


def _array(content: bytes, name: str, shape: Sequence[int]) -> NDArray[Any]:
    dtype = np.dtype(name)
    if not _is_plain(dtype) or math.prod(shape) * dtype.itemsize != len(content):
        raise ValueError(f"{len(content)} bytes are no {name} of shape {shape}")
    return np.ndarray(shape, dtype, bytearray(content))


def _tensor(content: bytes, name: str, shape: Sequence[int]) -> torch.Tensor:
    # A copy in memory of torch, whose alignment is that of any new tensor.
    return torch.tensor(np.frombuffer(content, np.uint8)).view(_TORCH_DTYPES[name]).reshape(shape)


def _png(content: bytes) -> Any:
    from PIL import Image

    with Image.open(io.BytesIO(content), formats=("PNG",)) as png:
        return png.copy()


def _image(content: bytes, mode: str, size: Sequence[int], palette: Any, clear: Any) -> Any:
    from PIL import Image

    width, height = size
    if width * height > len(content):  # every raw mode takes a byte a pixel or more
        raise ValueError(f"{len(content)} bytes are no picture of {size}")
    image = Image.frombytes(mode, (width, height), content)
    if palette is not None:
        image.putpalette(*palette)
    if clear is not None:
        image.info["transparency"] = clear
    return image


_READERS: dict[str, Callable[..., Any]] = {
    "bytes": bytes,
    "tensor": _tensor,
    "array": _array,
    "scalar": lambda *facts: _array(*facts)[()],
    "png": _png,
    "image": _image,
}


def encode(row: Row) -> EncodedRow:
    """Encodes a row; the result shares no memory with it.

    Tensors lose their device and gradients, and mappings (`OrderedDict`, `BatchEncoding`) become dicts.

    Raises:
        InvalidTypeError: If a value has an unsupported type; its option is the place, such as `sample['meta'][0]`.
    """
    writer = _Writer()
    form = _to_json([writer.write(row.sample, "sample"), writer.write(dict(row.payload), "payload")])
    return EncodedRow(form, writer.data)


def decode(row: EncodedRow) -> Row:
    """Decodes the result of `encode`.

    Returns:
        An equal row with its own memory; tensors are on the CPU.

    Raises:
        ValueError: If it is damaged.
    """

    def read(node: dict[str, Any]) -> Any:
        if _MARK not in node:
            return node
        kind, first, *facts = node[_MARK]
        if kind == "tuple":
            return tuple(first)
        return dict(first) if kind == "dict" else _READERS[kind](row.data[first], *facts)

    try:
        return Row(*json.loads(row.form, object_hook=read))
    except (ValueError, RuntimeError, OSError, SyntaxError, *DAMAGE) as error:  # numpy parses types
        text = f"A row of a buffer is damaged ({error}). Load an earlier checkpoint."
        raise InvalidValueError(text, option="row") from error
