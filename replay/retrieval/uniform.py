"""Every entry with equal probability."""

import numpy as np

from mixer.mixture.permutation import Permutation
from mixer.utils.arrays import Int64Array
from replay.retrieval.base import Retrieval
from replay.shared.random_numbers import RandomNumbers


class Uniform(Retrieval):
    """Draws entries uniformly at random without replacement; draws are independent of each other.

    The sampling of experience replay (Chaudhry et al. 2019, arXiv:1902.10486). A draw is a function of the key, its
    position and the number of entries; it takes O(count) time and no memory.
    """

    def start(self, capacity: int, key: int) -> None:
        """Begins with an empty buffer; see `Retrieval.start`."""
        self._random = RandomNumbers(key)

    def slots(self, start: int, count: int, size: int) -> Int64Array:
        """Draws again in place of what was drawn before; see `Retrieval.slots`."""
        seed = self._random.key(start)
        if 2 * count > size:  # most numbers would have been drawn before: the beginning of a permutation
            return Permutation(size, seed).indices(0, count) if count else np.zeros(0, dtype=np.int64)
        random, num_tries = RandomNumbers(seed), 2 * count
        while True:
            tries = random.integers(np.arange(num_tries), np.full(num_tries, size))
            _, firsts = np.unique(tries, return_index=True)
            if len(firsts) >= count:
                return tries[np.sort(firsts)[:count]]
            num_tries *= 2
