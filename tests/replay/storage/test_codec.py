"""A row comes back as it was, to the bit."""

import subprocess
import sys
from collections import OrderedDict, UserDict

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from PIL import Image
from transformers import BatchEncoding

from replay.storage import Row
from replay.storage.codec import decode, encode
from tests.replay.storage.samples import SAMPLES, as_bits


@settings(max_examples=300)
@given(SAMPLES)
def test_a_sample_comes_back_as_it_was(sample):
    assert as_bits(decode(encode(Row(sample))).sample) == as_bits(sample)


def test_a_payload_comes_back_as_it_was():
    payload = {"logits": np.linspace(0, 1, 7, dtype=np.float16).reshape(1, 7), "step": np.array(3)}
    row = decode(encode(Row(None, payload)))
    assert row.sample is None
    assert as_bits(dict(row.payload)) == as_bits(payload)


def test_what_comes_back_can_be_changed_and_was_copied():
    tensor, array = torch.zeros(3), np.zeros(3)
    content = encode(Row({"tensor": tensor, "array": array}))
    tensor += 1
    array += 1
    for _ in range(2):
        sample = decode(content).sample
        assert sample["tensor"].sum() == 0
        assert sample["array"].sum() == 0
        sample["tensor"] += 1
        sample["array"] += 1


def test_a_tensor_with_a_gradient_or_a_conjugate_view_is_kept_as_its_values():
    tensor = torch.tensor([1 + 2j, 3 - 1j], requires_grad=True)
    back = decode(encode(Row(tensor.conj()))).sample
    assert not back.requires_grad
    assert torch.equal(back, tensor.detach().conj().resolve_conj())


def test_a_part_of_a_mapped_file_comes_back_as_an_array(tmp_path):
    np.save(tmp_path / "all.npy", np.arange(6).reshape(2, 3))
    part = np.load(tmp_path / "all.npy", mmap_mode="r")[1]
    back = decode(encode(Row(part))).sample
    assert type(back) is np.ndarray
    assert back.tolist() == [3, 4, 5]


@pytest.mark.parametrize("mode", [mode for mode in sorted(Image.MODES) if mode != "PA"] + ["HSV"])
def test_an_image_comes_back_with_its_mode_and_pixels(mode):
    size = (7, 5)
    content = np.random.default_rng(0).bytes(len(Image.new(mode, size).tobytes()))
    image = Image.frombytes(mode, size, content)
    back = decode(encode(Row({"image": image}))).sample["image"]
    assert (back.mode, back.size, back.tobytes()) == (mode, size, image.tobytes())


def test_an_image_with_a_palette_looks_the_same():
    colours = Image.frombytes("RGB", (9, 9), np.random.default_rng(0).bytes(243))
    for clear in (None, 2, b"\x00\x10\xff"):
        image = colours.quantize(11)
        if clear is not None:
            image.info["transparency"] = clear
        back = decode(encode(Row(image))).sample
        assert back.tobytes() == image.tobytes()
        assert back.convert("RGBA").tobytes() == image.convert("RGBA").tobytes()


def test_an_image_without_pixels_comes_back():
    assert decode(encode(Row(Image.new("RGB", (0, 4))))).sample.size == (0, 4)


def test_mappings_come_back_as_dicts():
    for kind in (OrderedDict, UserDict, BatchEncoding):
        back = decode(encode(Row(kind({"input_ids": [1, 2], "meta": OrderedDict(a=1)})))).sample
        assert back == {"input_ids": [1, 2], "meta": {"a": 1}}
        assert type(back) is type(back["meta"]) is dict


def test_without_images_pil_is_not_imported():
    code = (
        "import sys; from replay.storage.codec import *\n"
        "sys.modules['PIL'] = sys.modules['PIL.Image'] = None\n"
        "assert decode(encode(Row({'a': 1}))).sample == {'a': 1}"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("value", "found"),
    [
        ({1, 2}, "a builtins.set"),
        (OrderedDict({1: 2}), "a collections.OrderedDict"),
        (np.array([object()]), "numpy's object"),
        (np.zeros(2, dtype=[("a", "i4")]), "numpy's"),
        (torch.zeros(2).to_sparse(), "a sparse"),
        (torch.nn.Parameter(torch.zeros(2)), "Parameter"),
        (bytearray(b"a"), "a builtins.bytearray"),
        (1j, "a builtins.complex"),
    ],
)
def test_what_cannot_be_kept_is_named_with_its_place(value, found):
    with pytest.raises(TypeError, match=r"sample\['meta'\]\[0\]\[1\]: .* cannot be kept") as info:
        encode(Row({"meta": [("x", value)]}))
    assert found in str(info.value)
    assert "torch tensors" in str(info.value)
    with pytest.raises(TypeError, match=r"payload\['logits'\]: "):
        encode(Row(None, {"logits": value}))
