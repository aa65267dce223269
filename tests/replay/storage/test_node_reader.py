"""Rows that anyone may have written: what is not encoded so is refused, before it takes memory or runs something."""

import json
import tracemalloc
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from replay.storage import Row
from replay.storage.codec import decode, encode


def encoded(sample: Any, buffers: bytes = b"") -> bytes:
    """The bytes of a row whose sample is a node, as whoever writes them may choose it."""
    header = json.dumps([sample, ["dict"]]).encode()
    return len(header).to_bytes(4, "little") + header + buffers


def test_what_is_written_so_by_hand_is_read() -> None:
    assert decode(encoded(["array", "<i8", [1], 8], bytes(8))).sample.tolist() == [0]
    assert decode(encoded(["tensor", "float32", [2], 8], bytes(8))).sample.tolist() == [0.0, 0.0]
    assert decode(encoded(["dict", "a", 1])).sample == {"a": 1}


@pytest.mark.parametrize(
    ("node", "said"),
    [
        (["bytes", 9], "9 bytes are asked for, and 8 are left"),
        (["bytes", -1], "-1 bytes are asked for"),
        (["text", True], "True bytes are asked for"),
        (["ints", 8.0], "8.0 bytes are asked for"),
        (["list", ["bytes", 8], ["bytes", -8], ["bytes", 8]], "-8 bytes are asked for"),
        (["dict", "a"], "a key without a value"),
        (["dict", "a", 1, "b"], "a key without a value"),
        (["dict", ["list"], 1], "unhashable"),
        (["array", "<i8", [10**12], 8], "8 bytes are no array of shape"),
        (["array", "<i8", [10**12], 0], "0 bytes are no array of shape"),
        (["array", "<i8,(1", [1], 8], "was never closed"),
        (["array", "<i8", [-1], 8], "8 bytes are no array of shape"),
        (["array", "<i8", [-1, -1], 8], "8 bytes are no array of shape"),
        (["array", "<i8", [True], 8], "8 bytes are no array of shape"),
        (["array", "<i8", [1.0], 8], "8 bytes are no array of shape"),
        (["array", "<U250000000", [], 8], "no array of shape"),
        (["scalar", "<i4", 8], "8 bytes are no array of shape"),
        (["array", "|O", [1], 8], "'|O' is no type of an array that is written"),
        (["array", "O", [1], 8], "is no type of an array that is written"),
        (["array", "f8,f8", [1], 8], "8 bytes are no array of shape"),
        (["array", "(10000,10000)f8", [1], 8], "8 bytes are no array of shape"),
        (["array", {"names": ["a"], "formats": ["O"]}, [1], 8], "is no type of an array that is written"),
        (["array", 3, [1], 8], "Cannot interpret '3' as a data type"),
        (["tensor", "float32", [10**12], 8], "8 bytes are no array of shape"),
        (["tensor", "float32", [10**12], 0], "0 bytes are no array of shape"),
        (["tensor", "float32", [-1], 8], "8 bytes are no array of shape"),
        (["tensor", "load", [1], 8], "'load'"),
        (["tensor", "float3", [1], 8], "'float3'"),
        (["made up"], "'made up'"),
        ([], "list index out of range"),
        (["int", "zz"], "invalid literal"),
        (["float", "00"], "requires a buffer of 8 bytes"),
    ],
)
def test_a_node_that_is_never_written_is_refused(node: Any, said: str) -> None:
    with pytest.raises(ValueError, match=r"A row of a buffer is damaged \(.*Load an earlier checkpoint") as info:
        decode(encoded(node, bytes(8)))
    assert type(info.value) is ValueError
    assert said in str(info.value)


@pytest.mark.parametrize(
    "content",
    [b"", b"\x00", b"\xff\xff\xff\xff", b"\x02\x00\x00\x00[]", b"\x01\x00\x00\x003", b"\x01\x00\x00\x00\xff"],
)
def test_bytes_that_are_no_row_are_refused(content: bytes) -> None:
    with pytest.raises(ValueError, match="A row of a buffer is damaged") as info:
        decode(content)
    assert type(info.value) is ValueError


def test_levels_without_end_are_refused() -> None:
    header = b"[" * 100_000
    with pytest.raises(ValueError, match="A row of a buffer is damaged"):
        decode(len(header).to_bytes(4, "little") + header)


def test_a_row_cut_off_anywhere_is_refused() -> None:
    sample = {
        "ids": [1, 2],
        "text": "é",
        "array": np.zeros(2),
        "tensor": torch.ones(2),
        "image": Image.new("L", (3, 3)),
    }
    whole = encode(Row(sample))
    for length in range(len(whole)):
        with pytest.raises(ValueError, match="A row of a buffer is damaged"):
            decode(whole[:length])


def test_a_shape_takes_no_memory_before_it_is_compared() -> None:
    content = encoded(["array", "<i8", [10**7], 8], bytes(8))
    tracemalloc.start()
    with pytest.raises(ValueError, match="no array of shape"):
        decode(content)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 10**6
