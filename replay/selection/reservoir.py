"""A uniform sample of all offered samples."""

import numpy as np

from mixer.utils.arrays import Int64Array
from replay.selection.base import Offers, Selection
from replay.shared.random_numbers import RandomNumbers


class Reservoir(Selection):
    """Keeps every sample with the same probability, however many come and however often: reservoir sampling.

    Vitter 1985, "Random Sampling with a Reservoir", algorithm R: sample `n`, counted from 0, draws `j ~ U{0..n}`, both
    ends included, and takes slot `j` if `j < C`. So each of `N` samples is kept with probability `min(1, C/N)`. (With
    `j ~ U{0..n-1}`, as in several libraries, late samples are kept too often.) A draw is a function of the key and `n`.

    After `remove` the next samples that are accepted, still with probability `C/(n + 1)`, take the free slots and
    push nothing out. With `r` entries removed, samples from before and after then differ in their probability by a
    factor of about `1 + r/C`, and not at all among themselves.
    """

    counts_rows = True
    remembered = ("_size",)

    def start(self, capacity: int, key: int) -> None:
        """Begins with an empty buffer; see `Selection.start`."""
        super().start(capacity, key)
        self._random = RandomNumbers(key)

    def choose(self, offers: Offers) -> Int64Array:
        """Draws for each sample whether it is kept and where; see `Selection.choose`."""
        drawn = self._random.integers(offers.numbers, offers.numbers + 1)
        slots = np.where(drawn < self._capacity, drawn, -1)
        if self._size < self._capacity:
            accepted = np.flatnonzero(slots >= 0)[: self._capacity - self._size]
            slots[accepted] = np.arange(self._size, self._size + len(accepted))
            self._size += len(accepted)
        return slots

    def remove(self, slot: int) -> None:
        """Forgets an entry; see `Selection.remove`."""
        self._size -= 1
