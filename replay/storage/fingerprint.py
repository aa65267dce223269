"""What a data set is recognised by in another process."""

import hashlib
from typing import Any

import numpy as np

from mixer.loading.deterministic import reads_without_randomness
from mixer.utils.random_state import seeded
from replay.storage.codec import encode
from replay.storage.rows import Row

_NUM_SAMPLES = 8


def fingerprint(dataset: Any) -> str:
    """Makes a fingerprint of a data set's length, type and some evenly spread samples.

    Where samples cannot be read or encoded, or differ from one reading to the next, the length has to do.

    Args:
        dataset: A map-style data set.

    Returns:
        A text that is the same wherever the data set is.
    """
    length = len(dataset)
    content = _read(dataset, length)
    is_stable = reads_without_randomness(dataset) or (content is not None and _read(dataset, length) == content)
    if content is None or not is_stable:
        return f"length {length}"
    return hashlib.blake2b(f"{type(dataset).__qualname__} {length} {content}".encode(), digest_size=16).hexdigest()


def _read(dataset: Any, length: int) -> list[str] | None:
    indices = np.unique(np.linspace(0, length - 1, _NUM_SAMPLES).astype(np.int64)).tolist() if length else []
    try:
        with seeded(0):
            samples = [dataset[index] for index in indices]
    except Exception:  # whether a broken sample ends a run is said where it is trained on
        return None
    try:
        return [hashlib.blake2b(encode(Row(sample)), digest_size=16).hexdigest() for sample in samples]
    except TypeError:
        return None
