"""Images that anyone may have written."""

import io
from typing import Any

import pytest
from PIL import Image

from replay.storage.codec import decode_image, encode_image


def png(mode: str, size: tuple[int, int], form: str = "PNG") -> memoryview:
    content = io.BytesIO()
    Image.new(mode, size).save(content, format=form)
    return memoryview(content.getvalue())


def test_no_other_formats_are_tried() -> None:
    with pytest.raises(OSError, match="cannot identify"):
        decode_image({"mode": "RGB", "size": [4, 3]}, png("RGB", (4, 3), "GIF"))


@pytest.mark.parametrize("size", [[10**5, 10**5], [13, 1]])
def test_pixels_that_are_not_there_take_no_memory(size: list[int]) -> None:
    with pytest.raises(ValueError, match="12 bytes are no picture of"):
        decode_image({"mode": "1", "size": size, "is_raw": True}, memoryview(bytes(12)))


@pytest.mark.parametrize("mode", ["1", "L", "P", "RGB", "RGBA", "CMYK", "F", "I;16"])
@pytest.mark.parametrize("size", [(0, 4), (4, 3)])
def test_what_was_encoded_is_decoded(mode: str, size: tuple[int, int]) -> None:
    about, content = encode_image(Image.new(mode, size))
    about = {**about, "size": list(about["size"])}  # as it comes out of JSON
    found: Any = decode_image(about, memoryview(content))
    assert (found.mode, found.size) == (mode, size)
