"""Reads the nodes of an encoded row; what they are is said where they are written, in the codec."""

import math
import re
import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from replay.storage.image_bytes import decode_image

# What numpy calls types of numbers, times and texts by; it parses other names, and at length.
_NUMPY_DTYPE = re.compile(r"[<>|=]?[biufcSUVmM]\d{1,9}(\[\d{0,9}\w{1,2}\])?")
_TORCH_DTYPES = {
    str(kind).removeprefix("torch."): kind for kind in vars(torch).values() if isinstance(kind, torch.dtype)
}


class NodeReader:
    """Reads nodes one after the other, and with them the bytes that follow the header.

    Args:
        view: Header and bytes.
        start: Where the header ends.
    """

    def __init__(self, view: memoryview, start: int):
        self._view, self._at = view, start

    def read(self, node: Any) -> Any:
        """Reads one node.

        Args:
            node: The node; those before it have been read.

        Returns:
            What it stands for.
        """
        return _READERS[node[0]](self, node) if type(node) is list else node

    def take(self, num_bytes: int) -> memoryview:
        """Gives the next bytes.

        Args:
            num_bytes: How many.

        Returns:
            The bytes, in memory that is not their own.
        """
        if type(num_bytes) is not int or not 0 <= num_bytes <= len(self._view) - self._at:
            raise ValueError(f"{num_bytes!r} bytes are asked for, and {len(self._view) - self._at} are left")
        self._at += num_bytes
        return self._view[self._at - num_bytes : self._at]

    def _read_dict(self, node: Any) -> dict[Any, Any]:
        if len(node) % 2 == 0:
            raise ValueError("a key without a value")
        items = iter(node[1:])
        return {self.read(key): self.read(next(items)) for key in items}

    def _read_array(self, name: str, shape: Any, num_bytes: int) -> np.ndarray[Any, Any]:
        if not isinstance(name, str) or not _NUMPY_DTYPE.fullmatch(name):
            raise ValueError(f"{name!r} is no type of an array that is written")
        dtype = np.dtype(name)
        _check_size(shape, dtype.itemsize, num_bytes)
        array: np.ndarray[Any, Any] = np.ndarray(shape, dtype=dtype)
        if num_bytes:
            array[...] = np.frombuffer(self.take(num_bytes), dtype=dtype).reshape(shape)
        return array

    def _read_tensor(self, name: str, shape: Any, num_bytes: int) -> torch.Tensor:
        dtype = _TORCH_DTYPES[name]
        _check_size(shape, dtype.itemsize, num_bytes)
        if not num_bytes:
            return torch.empty(shape, dtype=dtype)
        memory = torch.from_numpy(np.frombuffer(self.take(num_bytes), dtype=np.uint8).copy())
        return memory.view(dtype).reshape(shape)


def _check_size(shape: Any, bytes_each: int, num_bytes: int) -> None:
    """Refuses a shape that would take other memory than the bytes that are there for it."""
    if not all(type(length) is int and length >= 0 for length in shape) or math.prod(shape) * bytes_each != num_bytes:
        raise ValueError(f"{num_bytes} bytes are no array of shape {shape} with {bytes_each} bytes each")


_READERS: dict[str, Callable[[NodeReader, Any], Any]] = {
    "int": lambda reader, node: int(node[1], 16),
    "float": lambda reader, node: struct.unpack("<d", bytes.fromhex(node[1]))[0],
    "text": lambda reader, node: str(reader.take(node[1]), "utf-8", "surrogatepass"),
    "bytes": lambda reader, node: bytes(reader.take(node[1])),
    "ints": lambda reader, node: np.frombuffer(reader.take(node[1]), dtype=np.int64).tolist(),
    "floats": lambda reader, node: np.frombuffer(reader.take(node[1]), dtype=np.float64).tolist(),
    "list": lambda reader, node: [reader.read(item) for item in node[1:]],
    "tuple": lambda reader, node: tuple([reader.read(item) for item in node[1:]]),
    "dict": NodeReader._read_dict,
    "numpy text": lambda reader, node: np.str_(str(reader.take(node[1]), "utf-8", "surrogatepass")),
    "numpy bytes": lambda reader, node: np.bytes_(bytes(reader.take(node[1]))),
    "scalar": lambda reader, node: reader._read_array(node[1], (), node[2])[()],
    "array": lambda reader, node: reader._read_array(*node[1:]),
    "tensor": lambda reader, node: reader._read_tensor(*node[1:]),
    "image": lambda reader, node: decode_image(node[1], reader.take(node[2])),
}
