"""Nested samples of all kinds, and what it means that two are the same."""

import math
import struct
from typing import Any

import hypothesis.extra.numpy as arrays
import numpy as np
import torch
from hypothesis import strategies as st

TORCH_DTYPES = [
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.complex64,
    torch.complex128,
    torch.float8_e4m3fn,
]
_NUMPY_DTYPES = st.one_of(
    arrays.boolean_dtypes(),
    arrays.integer_dtypes(),
    arrays.unsigned_integer_dtypes(),
    arrays.floating_dtypes(),
    arrays.complex_number_dtypes(),
    arrays.datetime64_dtypes(),
    arrays.timedelta64_dtypes(),
    arrays.byte_string_dtypes(),
    arrays.unicode_string_dtypes(),
)
_SHAPES = arrays.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)


@st.composite
def tensors(draw: Any) -> torch.Tensor:
    """Tensors of any memory content, so with every kind of NaN, some of them transposed."""
    dtype, shape = draw(st.sampled_from(TORCH_DTYPES)), draw(_SHAPES)
    size = math.prod(shape) * dtype.itemsize
    if not size:
        return torch.empty(shape, dtype=dtype)
    memory = np.frombuffer(draw(st.binary(min_size=size, max_size=size)), dtype=np.uint8)
    if dtype is torch.bool:
        memory = memory & 1
    tensor = torch.from_numpy(memory.copy()).view(dtype).reshape(shape)
    return tensor.transpose(0, -1) if shape and draw(st.booleans()) else tensor


@st.composite
def numpy_arrays(draw: Any) -> Any:
    """Arrays in any order of memory, some of them turned to scalars."""
    array = draw(arrays.arrays(draw(_NUMPY_DTYPES), draw(_SHAPES)))
    return draw(st.sampled_from([array, array.T, array[()]]))


_FLOATS = st.binary(min_size=8, max_size=8).map(lambda content: struct.unpack("<d", content)[0])
_PLAIN = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(min_value=2**62, max_value=2**70),
    _FLOATS,
    st.text(st.characters(exclude_categories=())),
    st.binary(),
)
_KEYS = st.one_of(st.text(max_size=5), st.integers(), st.tuples(st.booleans(), st.text(max_size=2)))
SAMPLES = st.recursive(
    st.one_of(_PLAIN, tensors(), numpy_arrays(), st.lists(st.integers()), st.lists(_FLOATS)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(_KEYS, inner, max_size=4),
    ),
    max_leaves=8,
)


def as_bits(value: Any) -> Any:
    """Types, shapes and bits of a value, which can be compared where NaNs cannot."""
    if isinstance(value, dict):
        return dict, [(as_bits(key), as_bits(item)) for key, item in value.items()]
    if isinstance(value, (list, tuple)):
        return type(value), [as_bits(item) for item in value]
    if isinstance(value, torch.Tensor):
        plain = value.contiguous().reshape(-1)
        content = plain.view(torch.uint8).numpy().tobytes() if plain.numel() else b""
        return torch.Tensor, value.dtype, tuple(value.shape), content
    if isinstance(value, np.str_):
        return np.str_, str(value)
    if isinstance(value, (np.ndarray, np.generic)):
        return type(value) if isinstance(value, np.ndarray) else np.generic, value.dtype, value.shape, value.tobytes()
    return type(value), struct.pack("<d", value) if isinstance(value, float) else value
