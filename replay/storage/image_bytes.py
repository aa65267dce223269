"""PIL images as bytes, without loss; PIL is imported only where there are images."""

import io
import math
import sys
from typing import Any

# PNG keeps the pixels of these as they are; it would round or convert those of others, which are kept raw.
_PNG_MODES = frozenset({"1", "L", "LA", "RGB", "RGBA"})
# Of those that are kept raw, the least takes a byte a pixel.
_PIXELS_PER_BYTE = 1


def is_image(value: Any) -> bool:
    """Says whether a value is an image.

    Args:
        value: Anything.

    Returns:
        Whether it is a PIL image that can be kept.
    """
    module = sys.modules.get("PIL.Image")
    return module is not None and isinstance(value, module.Image) and value.mode != "PA"


def encode_image(image: Any) -> tuple[Any, bytes]:
    """Encodes an image: mode, size and pixels, and the palette if it has one; other notes in its file are left out.

    Args:
        image: The image.

    Returns:
        What is needed to decode the bytes, JSON-safe; and the bytes.
    """
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
    """Decodes an image.

    Args:
        about: See `encode_image`.
        content: The bytes.

    Returns:
        The image.
    """
    from PIL import Image

    if not about.get("is_raw"):
        with Image.open(io.BytesIO(content), formats=("PNG",)) as png:
            if [png.mode, *png.size] != [about["mode"], *about["size"]]:
                raise ValueError(f"the picture is {png.mode}, {png.size}, and not {about['mode']}, {about['size']}")
            return png.copy()
    if math.prod(about["size"]) > _PIXELS_PER_BYTE * len(content):
        raise ValueError(f"{len(content)} bytes are no picture of {about['size']}")
    image = Image.frombytes(about["mode"], tuple(about["size"]), bytes(content))
    if "palette" in about:
        image.putpalette(*about["palette"])
    if about.get("clear") is not None:
        image.info["transparency"] = bytes(about["clear"]) if about["is_clear_list"] else about["clear"]
    return image
