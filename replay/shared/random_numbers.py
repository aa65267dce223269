"""Random numbers that are computed, not drawn: pure functions of a key and a counter."""

import numpy as np

from mixer.mixture.permutation import mix_bits
from mixer.utils.arrays import FloatArray, Int64Array, UInt64Array

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_LOW = np.uint64(0xFFFFFFFF)
_SHIFT_11, _SHIFT_32 = np.uint64(11), np.uint64(32)


class RandomNumbers:
    """A table of random numbers without an end that takes no memory: number `n` is a function of the key and `n`.

    The words are those of SplitMix64 (Steele, Lea and Flood 2014), begun at a place that the key decides.

    Args:
        key: Random key, a signed 64-bit integer.
        purpose: Tables of the same key and another purpose have nothing to do with each other.

    Example:
        >>> RandomNumbers(key=7).integers(np.arange(5), np.full(5, 10)).tolist()
        [0, 9, 8, 9, 0]
    """

    def __init__(self, key: int, purpose: int = 0):
        own = mix_bits(np.array([key], dtype=np.int64).view(np.uint64) + _GOLDEN)
        self._start = mix_bits(own ^ (np.array([purpose], dtype=np.uint64) * _GOLDEN))

    def words(self, counters: Int64Array) -> UInt64Array:
        """Returns 64 random bits each.

        Args:
            counters: int64 `[count]`: which numbers.

        Returns:
            uint64 `[count]`.
        """
        return mix_bits(self._start + counters.view(np.uint64) * _GOLDEN)

    def uniforms(self, counters: Int64Array) -> FloatArray:
        """Returns numbers that are even over [0, 1).

        Args:
            counters: int64 `[count]`: which numbers.

        Returns:
            float64 `[count]`: multiples of 2**-53.
        """
        return np.asarray((self.words(counters) >> _SHIFT_11).astype(np.float64) * 2.0**-53)

    def integers(self, counters: Int64Array, bounds: Int64Array) -> Int64Array:
        """Returns whole numbers that are even over 0 to `bounds - 1`.

        Args:
            counters: int64 `[count]`: which numbers.
            bounds: int64 `[count]`: 1 or more each.

        Returns:
            int64 `[count]`: the upper halves of word times bound; a value's probability is off by 2**-64 at most.
        """
        # numpy has no type for the 128 bits of a product, so it goes by halves of 32 bits.
        left, right = self.words(counters), bounds.view(np.uint64)
        left_high, left_low, right_high, right_low = left >> _SHIFT_32, left & _LOW, right >> _SHIFT_32, right & _LOW
        middle = left_high * right_low + (left_low * right_low >> _SHIFT_32)
        carry = left_low * right_high + (middle & _LOW) >> _SHIFT_32
        upper: UInt64Array = left_high * right_high + (middle >> _SHIFT_32) + carry
        return upper.view(np.int64)

    def key(self, counter: int) -> int:
        """Returns a number as a random key, a signed 64-bit integer."""
        return int(self.words(np.array([counter], dtype=np.int64)).view(np.int64)[0])


def scaled(word: int, bound: int) -> int:
    """Computes for one word what `RandomNumbers.integers` computes for many.

    Args:
        word: 64 random bits.
        bound: 1 or more.

    Returns:
        A whole number from 0 to `bound - 1`.
    """
    return word * bound >> 64
