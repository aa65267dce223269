"""A uniform sample of all offered samples that can be merged with others."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mixer.utils.arrays import FloatArray, Int64Array
from replay.selection.base import Offers
from replay.selection.shared.slot_trees import LargestValues
from replay.shared.random_numbers import RandomNumbers


class KeyedReservoir(LargestValues):
    """Gives every sample a random number and keeps the `C` largest: a reservoir that can be merged.

    `u_n ~ U(0, 1)` is a function of the key and of the sample's number `n`; each of `N` samples is among the `C`
    largest with probability `min(1, C/N)` (Fan, Muller and Rezucha 1962; Efraimidis and Spirakis 2006, "Weighted random
    sampling with a reservoir", with equal weights). `merge_keyed` makes one even sample of several reservoirs that saw
    different samples.

    After `remove` from a full buffer only samples above the least number that was kept then are accepted: a sample is
    in the buffer if its number reaches that bar, whenever it came, so that free slots are taken again by and by, and
    evenly.
    """

    column = "keys"

    def start(self, capacity: int, key: int) -> None:
        """Begins with an empty buffer; see `Selection.start`."""
        super().start(capacity, key)
        self._random = RandomNumbers(key)
        self._bar = -1.0

    @property
    def capacity(self) -> int:
        """Number of slots."""
        return self._capacity

    @property
    def bar(self) -> float:
        """What the random numbers of all entries reach since an entry was removed; -1 before."""
        return self._bar

    @property
    def keys(self) -> FloatArray:
        """float64 `[size]`: the random number of each entry, by slot."""
        return self._tree.values(self._size)

    def choose(self, offers: Offers) -> Int64Array:
        """Keeps the largest random numbers; see `Selection.choose`."""
        keys = self._random.uniforms(offers.numbers)
        slots = np.full(offers.count, -1, dtype=np.int64)
        above = np.flatnonzero(keys > self._bar)
        slots[above] = self.place(keys[above])
        return slots

    def remove(self, slot: int) -> None:
        """Forgets an entry and holds the bar where it was; see `Selection.remove`."""
        if self._size == self._capacity:
            self._bar = max(self._bar, self._tree.least)
        super().remove(slot)

    def state_dict(self) -> dict[str, Any]:
        """Gives the random numbers of the entries; see `Selection.state_dict`."""
        return {**super().state_dict(), "bar": self._bar}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes up the random numbers; see `Selection.load_state_dict`."""
        super().load_state_dict(state)
        self._bar = float(state["bar"])


def merge_keyed(reservoirs: Sequence[KeyedReservoir], capacity: int) -> list[Int64Array]:
    """Says which entries of several reservoirs are an even sample of all that was offered to any of them.

    The largest random numbers of the union are among the largest of their own reservoir, so that nothing is lost by
    keeping these alone. Each of `N` samples in all is kept with probability `min(1, capacity/N)`.

    Args:
        reservoirs: Reservoirs that were offered different samples and have different keys.
        capacity: Number of entries to keep in all.

    Returns:
        For each reservoir, int64 `[num_kept]`: the slots of those to keep, ascending.

    Raises:
        ValueError: If a reservoir has less than `capacity` slots.
    """
    smallest = min((own.capacity for own in reservoirs), default=capacity)
    if smallest < capacity:
        raise ValueError(
            f"capacity must be at most that of each reservoir, got {capacity} and one of {smallest}: "
            f"entries that belong to the sample may be lost there; merge to {smallest}."
        )
    bar = max((own.bar for own in reservoirs), default=-1.0)
    least = np.sort(np.concatenate([np.full(capacity, bar), *(own.keys for own in reservoirs)]))[-capacity]
    return [np.flatnonzero(own.keys >= least) for own in reservoirs]
