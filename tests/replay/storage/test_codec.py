import io
import json
import math
import struct
from collections import OrderedDict, UserDict
from typing import Any

import hypothesis.extra.numpy as arrays
import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from PIL import Image

from mixer.utils.errors import InvalidTypeError
from replay.storage import Row
from replay.storage.codec import EncodedRow, decode, encode
from tests.refusals import refused

TORCH_DTYPES = [
    *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.bfloat16),
    *(torch.float32, torch.float64, torch.complex64, torch.complex128, torch.float8_e4m3fn),
]
_NUMPY_DTYPES = st.one_of(arrays.scalar_dtypes(), arrays.byte_string_dtypes(), arrays.unicode_string_dtypes())
_SHAPES = arrays.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)


@st.composite
def tensors(draw: Any) -> torch.Tensor:
    """Tensors of any memory content, so with every kind of NaN, some of them transposed."""
    dtype, shape = draw(st.sampled_from(TORCH_DTYPES)), draw(_SHAPES)
    size = math.prod(shape) * dtype.itemsize
    if not size:
        return torch.empty(shape, dtype=dtype)
    memory = np.frombuffer(draw(st.binary(min_size=size, max_size=size)), dtype=np.uint8)
    tensor = torch.from_numpy(memory & 1 if dtype is torch.bool else memory.copy()).view(dtype).reshape(shape)
    return tensor.transpose(0, -1) if shape and draw(st.booleans()) else tensor


_ARRAYS = arrays.arrays(_NUMPY_DTYPES, _SHAPES).flatmap(lambda array: st.sampled_from([array, array.T, array[()]]))


_FLOATS = st.binary(min_size=8, max_size=8).map(lambda content: struct.unpack("<d", content)[0])
_INTS = st.one_of(st.integers(), st.integers(min_value=2**62, max_value=2**70))
_TEXTS = st.text(st.characters(exclude_categories=()))
_PLAIN = st.one_of(st.none(), st.booleans(), _INTS, _FLOATS, _TEXTS, st.binary())
_KEYS = st.one_of(st.text(max_size=5), st.integers(), st.tuples(st.booleans(), st.text(max_size=2)))
SAMPLES = st.recursive(
    st.one_of(_PLAIN, tensors(), _ARRAYS, st.lists(st.integers()), st.lists(_FLOATS)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.lists(inner, max_size=3).map(tuple), st.dictionaries(_KEYS, inner, max_size=4)
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
    if isinstance(value, (np.ndarray, np.generic)):
        return type(value) if isinstance(value, np.ndarray) else np.generic, value.dtype, value.shape, value.tobytes()
    return type(value), repr(value) if isinstance(value, float) else value  # JSON has one NaN


def back(sample: Any) -> Any:
    return decode(encode(Row(sample))).sample


@given(SAMPLES)
def test_a_sample_comes_back_as_it_was(sample: Any) -> None:
    assert as_bits(back(sample)) == as_bits(sample)


def test_values_are_copied_and_views_and_mappings_become_plain(tmp_path: Any) -> None:
    sample = {"tensor": torch.zeros(3), "array": np.zeros(3)}
    content = encode(Row(sample))
    for changed in (sample, decode(content).sample):
        for values in changed.values():
            values += 1
    assert all(values.sum() == 0 for values in decode(content).sample.values())
    tensor = torch.tensor([1 + 2j, 3 - 1j], requires_grad=True)
    np.save(tmp_path / "all.npy", np.arange(6).reshape(2, 3))
    for kind in (OrderedDict, UserDict):
        mapped = np.load(tmp_path / "all.npy", mmap_mode="r")[1]
        found = back(kind({"ids": [1, 2], "meta": OrderedDict(view=tensor.conj(), part=mapped)}))
        assert type(found) is type(found["meta"]) is dict
        view, part = found["meta"].values()
        assert not view.requires_grad
        assert torch.equal(view, tensor.detach().conj().resolve_conj())
        assert (type(part), part.tolist()) == (np.ndarray, [3, 4, 5])


@pytest.mark.parametrize("mode", [mode for mode in sorted(Image.MODES) if mode != "PA"] + ["HSV"])
def test_an_image_comes_back_with_its_mode_and_pixels(mode: str) -> None:
    content = np.random.default_rng(0).bytes(len(Image.new(mode, (7, 5)).tobytes()))
    image = Image.frombytes(mode, (7, 5), content)
    found = back({"image": image})["image"]
    assert (found.mode, found.size, found.tobytes()) == (mode, (7, 5), image.tobytes())
    assert (back(Image.new(mode, (0, 4))).mode, back(Image.new(mode, (0, 4))).size) == (mode, (0, 4))


@pytest.mark.parametrize("clear", [{}, {"transparency": 2}, {"transparency": b"\x00\x10\xff"}])
def test_an_image_with_a_palette_looks_the_same(clear: dict[str, Any]) -> None:
    image = Image.frombytes("RGB", (9, 9), np.random.default_rng(0).bytes(243)).quantize(11)
    image.info |= clear
    found = back(image)
    assert found.tobytes() == image.tobytes()
    assert found.convert("RGBA").tobytes() == image.convert("RGBA").tobytes()


@pytest.mark.parametrize(
    ("value", "found"),
    [
        ({1, 2}, "a builtins.set"),
        (np.array([object()]), "numpy's object"),
        (np.zeros(2, dtype=[("a", "i4")]), "numpy's [('a', '<i4')]"),
        (torch.zeros(2).to_sparse(), "a sparse, quantized or meta tensor"),
        (torch.nn.Parameter(torch.zeros(2)), "a torch.nn.parameter.Parameter"),
    ],
)
def test_what_cannot_be_kept_is_named_with_its_place(value: Any, found: str) -> None:
    for row, place in (
        (Row({"meta": [("x", value)]}), "sample['meta'][0][1]"),
        (Row(None, {"a": value}), "payload['a']"),
    ):
        with refused(place, InvalidTypeError, found=found):
            encode(row)


_TYPES = ("|O", {"names": ["a"], "formats": ["O"]}, "f8,f8", "O,i8", "(10000,9)f8")
NODES: list[Any] = [["array", 0, name, [1]] for name in _TYPES]
NODES += [[kind, 0, *facts] for kind in ("array", "scalar") for facts in (("<i8", [2]), ("O", [1]), ("V8", 1))]
NODES += [["array", 0, "<i8", shape] for shape in ([10**12], [-1, -1], [1.0])]
NODES += [["tensor", 0, "float32", shape] for shape in ([10**12], [0], [-2])]
NODES += [["image", 0, "1", size, None, None] for size in ([10**5, 10**5], [9, 1])]
NODES += [["tensor", 0, "load", [1]], ["bytes", 9], ["bytes", "x"], ["made up", 0], ["png", 0], [], 3]
NODES += [["dict", [["a"]]], ["dict", [[[], 1]]]]


@pytest.mark.parametrize("node", NODES)
def test_a_node_that_is_never_written_is_refused(node: Any) -> None:
    with refused("row"):
        decode(EncodedRow(json.dumps([{"": node}, {}]), [bytes(8)]))


def test_forms_that_are_no_rows_are_refused() -> None:
    whole = encode(Row({"ids": [1, 2], "text": "é"})).form
    for form in [*(whole[:length] for length in range(len(whole))), "3", "[1,2,3]", "[" * 100_000]:
        with refused("row"):
            decode(EncodedRow(form, []))


def test_pictures_of_other_formats_are_refused() -> None:
    content = io.BytesIO()
    Image.new("RGB", (4, 3)).save(content, format="GIF")
    with refused("row"):
        decode(EncodedRow('[{"":["png",0]},{}]', [content.getvalue()]))
