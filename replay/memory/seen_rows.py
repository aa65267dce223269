"""The rows that were offered to a buffer at some time, a bit each."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mixer.utils.arrays import BoolArray, Int64Array
from replay.storage.sources import split


class SeenRows:
    """A set of addresses, which takes a bit for each row of their data sets; rows without an address are never in it.

    Args:
        bits: The result of `state_dict`.
    """

    def __init__(self, bits: Mapping[str, Any] | None = None):
        self._bits = {int(source): np.array(own, dtype=np.uint8) for source, own in (bits or {}).items()}

    def has(self, addresses: Int64Array) -> BoolArray:
        """Returns which addresses are in the set, `[count]`."""
        found = np.zeros(len(addresses), dtype=bool)
        for source, are_own, indices in _by_source(addresses):
            bits = self._bits_of(source, indices)
            found[are_own] = bits[indices >> 3] >> (indices & 7) & 1
        return found

    def add(self, addresses: Int64Array) -> None:
        """Adds addresses."""
        for source, _, indices in _by_source(addresses):
            bits = self._bits_of(source, indices)
            np.bitwise_or.at(bits, indices >> 3, np.left_shift(1, indices & 7).astype(np.uint8))

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Returns the bits of each source, by its id."""
        return {str(source): bits for source, bits in self._bits.items()}

    def _bits_of(self, source: int, indices: Int64Array) -> NDArray[np.uint8]:
        bits, size = self._bits.get(source, np.zeros(0, dtype=np.uint8)), int(indices.max()) // 8 + 1
        if size > len(bits):  # at least doubled, so that each row is copied a few times at most
            self._bits[source] = bits = np.pad(bits, (0, max(size, 2 * len(bits)) - len(bits)))
        return bits


def _by_source(addresses: Int64Array) -> list[tuple[int, BoolArray, Int64Array]]:
    sources, indices = split(addresses)
    known = np.unique(sources[addresses >= 0]).tolist()
    return [(source, sources == source, indices[sources == source]) for source in known]
