"""By what two samples are known to be the same: 8 bytes of a hash of their content."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch


def digest(content: Any) -> int:
    """Gives a hash of content that does not depend on the kind of container: a list, an array or a tensor.

    Args:
        content: Plain data, arrays and tensors. Other objects count by their `tobytes()`, else by their `repr`.

    Returns:
        An unsigned 64-bit number. Among a million different samples two are taken for the same with a probability of
        3e-8.

    Example:
        >>> digest({"input_ids": [1, 2]}) == digest({"input_ids": np.array([1, 2])})
        True
    """
    hashed = hashlib.blake2b(digest_size=8)
    _update(hashed, content)
    return int.from_bytes(hashed.digest(), "little")


def _update(hashed: Any, content: Any) -> None:
    if isinstance(content, Mapping):
        for name in sorted(content, key=str):
            hashed.update(b"m" + str(name).encode("utf-8", "surrogatepass") + b"\0")
            _update(hashed, content[name])
    elif isinstance(content, str):
        hashed.update(b"s" + content.encode("utf-8", "surrogatepass") + b"\0")
    elif (numbers := _numbers(content)) is not None:
        hashed.update(f"n{numbers.shape}".encode() + numbers.tobytes())
    elif isinstance(content, Sequence) and not isinstance(content, bytes):
        hashed.update(f"l{len(content)}".encode())
        for part in content:
            _update(hashed, part)
    else:
        own = getattr(content, "tobytes", None)
        raw = content if isinstance(content, bytes) else own() if callable(own) else repr(content).encode()
        hashed.update(b"b" + raw)


def _numbers(content: Any) -> Any:
    """Gives numbers as an array of 64 bits each; `None` where there is anything else."""
    if isinstance(content, torch.Tensor):
        content = content.detach().cpu()
        content = content.float().numpy() if content.is_floating_point() else content.numpy()
    if not isinstance(content, (bool, int, float, list, tuple, np.generic, np.ndarray)):
        return None
    if isinstance(content, (list, tuple)) and content and isinstance(content[0], (str, bytes, Mapping, torch.Tensor)):
        return None  # without making an array of strings first
    try:
        array = np.asarray(content)
    except (ValueError, OverflowError):  # rows of different length
        return None
    if array.dtype.kind in "biu":
        return array.astype(np.int64)
    return array.astype(np.float64) if array.dtype.kind == "f" else None
