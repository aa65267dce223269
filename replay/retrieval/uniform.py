"""Every entry as often as any other."""

import numpy as np

from mixer.order import Order
from replay.random_numbers import RandomNumbers
from replay.retrieval.base import Int64Array, Retrieval


class Uniform(Retrieval):
    """Draws entries at random, none twice in a draw, and each draw without regard to those before it.

    The sampling of experience replay (Chaudhry et al. 2019, arXiv:1902.10486, algorithm 1). A draw is the beginning of
    a keyed permutation of the slots, a function of the key, the position of the draw and the number of entries; it
    takes O(count) and no memory.
    """

    def start(self, capacity: int, key: int) -> None:
        """Begins with an empty buffer; see `Retrieval.start`."""
        self._random = RandomNumbers(key)

    def slots(self, start: int, count: int, size: int) -> Int64Array:
        """Gives the first of a permutation of its own; see `Retrieval.slots`."""
        if count == 0:
            return np.zeros(0, dtype=np.int64)
        seed = int(self._random.words(np.array([start], dtype=np.int64)).view(np.int64)[0])
        return Order(size, seed).indices(0, count)
