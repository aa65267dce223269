"""The order of the samples inside a stream: a keyed bijection that is computed, not stored."""

from collections.abc import Sequence
from math import isqrt

import numpy as np
from numpy.typing import ArrayLike

from mixer.utils.arrays import Int64Array, UInt64Array

_ROUNDS = 8  # even: the two halves change places in each and have to end where they began
_SMALL = 4_096  # a grid of few cells mixes slowly: streams below this length get twice the rounds
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_SHIFT_27, _SHIFT_30, _SHIFT_31, _SHIFT_32 = (np.uint64(bits) for bits in (27, 30, 31, 32))
_ROUND_CONSTANTS = np.arange(1, _ROUNDS + 1, dtype=np.uint64) * _MIX_1


def mix_bits(values: UInt64Array) -> UInt64Array:
    """Scrambles 64-bit words (the finaliser of SplitMix64; Steele, Lea and Flood 2014).

    Args:
        values: Words of any shape.

    Returns:
        Words of the same shape; every input bit reaches every output bit.
    """
    values = (values ^ (values >> _SHIFT_30)) * _MIX_1
    values = (values ^ (values >> _SHIFT_27)) * _MIX_2
    return values ^ (values >> _SHIFT_31)


class Permutation:
    """The shuffled order of one stream or of many, at no cost in memory.

    Position `p` of a stream of length `n` stands for sample `perm(seed, p // n)(p % n)`: every epoch is a
    permutation of its own, so that every sample comes exactly once an epoch. The permutation is a Feistel network
    over the grid `Z_rows x Z_columns` (the generalised form of Black and Rogaway 2002, "Ciphers with arbitrary
    finite domains") with cycle walking. The grid has hardly more cells than the stream has samples, so a walk is
    rare at any length, powers of two or not.

    Args:
        length: Number of samples of the stream, or `[num_streams]` of them.
        seed: Key of the stream, or `[num_streams]` of them.
        shuffle: `False` keeps the data set's own order; one value for all streams, or `[num_streams]` of them.

    Raises:
        ValueError: If a length is below 1 or too large, or the arguments differ in length.

    Example:
        >>> Permutation(length=5, seed=7).indices(start=0, count=5).tolist()
        [3, 1, 4, 2, 0]
    """

    def __init__(self, length: int | Sequence[int], seed: int | Sequence[int], shuffle: bool | Sequence[bool] = True):
        lengths = np.atleast_1d(np.asarray(length, dtype=np.int64))
        seeds = np.atleast_1d(np.asarray(seed)).astype(np.int64, casting="unsafe").view(np.uint64)
        if lengths.shape != seeds.shape:
            raise ValueError(f"length and seed must have one entry a stream, got {len(lengths)} and {len(seeds)}.")
        if lengths.size and not (lengths.min() >= 1 and lengths.max() < 2**62):
            raise ValueError(f"length must be between 1 and 2**62, got {lengths.min()} to {lengths.max()}.")
        self._lengths = lengths
        self._keys = mix_bits(seeds + _GOLDEN)
        self._rows = np.array([_ceil_sqrt(int(n)) for n in lengths], dtype=np.uint64)
        # An even number of columns: with two odd sides every round is an even permutation, and odd ones would be rarer.
        self._columns = 2 * -(-lengths // (2 * self._rows.astype(np.int64)))
        self._small = lengths < _SMALL
        self._shuffle = np.broadcast_to(np.asarray(shuffle, dtype=bool), lengths.shape)

    def indices(self, start: int, count: int, stream_id: int = 0) -> Int64Array:
        """Gives the data-set indices of consecutive positions of one stream, across epochs.

        Args:
            start: First position, counted from the beginning of the first epoch.
            count: Number of positions.
            stream_id: Which stream, where the order holds several.

        Returns:
            int64 `[count]`: indices into the stream's data set.
        """
        return self.map_positions(np.full(count, stream_id), np.arange(start, start + count, dtype=np.int64))

    def map_positions(self, stream_ids: ArrayLike, positions: ArrayLike) -> Int64Array:
        """Gives the data-set indices of any positions of any streams in one vectorised call.

        Args:
            stream_ids: int `[count]`: the stream of each position.
            positions: int64 `[count]`: positions inside those streams, 0 or more.

        Returns:
            int64 `[count]`: indices into the data set of the stream of each position.
        """
        ids = np.asarray(stream_ids, dtype=np.int64)
        epochs, offsets = np.divmod(np.asarray(positions, dtype=np.int64), self._lengths[ids])
        keys = mix_bits(self._keys[ids] + epochs.view(np.uint64) * _GOLDEN)
        indices = self._permute(ids, keys, offsets)
        outside = np.flatnonzero(indices >= self._lengths[ids])
        while outside.size:  # cycle walking: what falls outside the stream is permuted again until it falls inside
            indices[outside] = self._permute(ids[outside], keys[outside], indices[outside])
            outside = outside[indices[outside] >= self._lengths[ids[outside]]]
        return indices if self._shuffle.all() else np.where(self._shuffle[ids], indices, offsets)

    def _permute(self, ids: Int64Array, keys: UInt64Array, cells: Int64Array) -> Int64Array:
        cells = self._feistel(ids, keys, cells)
        small = np.flatnonzero(self._small[ids])
        if small.size:
            cells[small] = self._feistel(ids[small], ~keys[small], cells[small])
        return cells

    def _feistel(self, ids: Int64Array, keys: UInt64Array, cells: Int64Array) -> Int64Array:
        columns = self._columns[ids]
        left, right = (half.view(np.uint64) for half in np.divmod(cells, columns))
        left_size, right_size = self._rows[ids], columns.view(np.uint64)
        for round_constant in _ROUND_CONSTANTS:
            word = mix_bits(right + keys + round_constant)
            left = left + (((word >> _SHIFT_32) * left_size) >> _SHIFT_32)
            # Unsigned wrap-around: the smaller of x and x - size is x modulo size, since x < 2 * size.
            left = np.minimum(left, left - left_size)
            left, right, left_size, right_size = right, left, right_size, left_size
        return (left * columns.view(np.uint64) + right).view(np.int64)


def _ceil_sqrt(value: int) -> int:
    return isqrt(value - 1) + 1


class PermutationBlock:
    """One stream's order, read ahead in blocks.

    Mapping has a fixed price a call, so that mapping some thousand positions at once and reading them off a table makes
    small steps about fifty times cheaper.

    Args:
        order: The order of one stream.
        length: Positions of a block.
    """

    def __init__(self, order: Permutation, length: int = 4_096):
        self._order = order
        self._length = length
        self._start = 0
        self._table: Int64Array = np.zeros(0, dtype=np.int64)

    def read(self, positions: range | Int64Array) -> Int64Array:
        """Gives the data-set indices of positions.

        Args:
            positions: `[count]`: positions in ascending order.

        Returns:
            int64 `[count]`: indices into the data set; not to be written to.
        """
        if len(positions) == 0:
            return self._table[:0]
        start, stop = int(positions[0]), int(positions[-1]) + 1
        if not self._start <= start <= stop <= self._start + len(self._table):
            if stop - start > self._length:
                own = np.asarray(positions, dtype=np.int64)
                return self._order.map_positions(np.zeros(len(own), dtype=np.int64), own)
            self._start, self._table = start, self._order.indices(start, self._length)
        if isinstance(positions, range):
            indices: Int64Array = self._table[start - self._start : stop - self._start : positions.step]
            return indices
        return self._table[positions - self._start]


Order = Permutation  # the public name
