"""The order of a stream's samples: a keyed bijection that is computed, not stored."""

from collections.abc import Callable, Sequence
from math import isqrt

import numpy as np
from numpy.typing import ArrayLike

from mixer.utils.arrays import Int64Array, UInt64Array
from mixer.utils.errors import InvalidValueError

_ROUNDS = 8  # even: the halves swap in each round and must end in place
_LONGEST = 2**62 - 1
_SMALL = 4_096  # small grids mix slowly: streams below this length get twice the rounds
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_SHIFT_27, _SHIFT_30, _SHIFT_31, _SHIFT_32 = (np.uint64(bits) for bits in (27, 30, 31, 32))
_ROUND_CONSTANTS = np.arange(1, _ROUNDS + 1, dtype=np.uint64) * _MIX_1
_FEW = 65  # positions that are mapped in little more than the fixed cost of a call
_Permute = Callable[[Int64Array, UInt64Array, Int64Array], Int64Array]


def mix_bits(values: UInt64Array) -> UInt64Array:
    """Scrambles 64-bit words of any shape (the finaliser of SplitMix64; Steele, Lea and Flood 2014).

    Every input bit affects every output bit.
    """
    values = (values ^ (values >> _SHIFT_30)) * _MIX_1
    values = (values ^ (values >> _SHIFT_27)) * _MIX_2
    return values ^ (values >> _SHIFT_31)


class Permutation:
    """Shuffled order of one stream or of many, without memory cost.

    Position `p` of a stream of length `n` maps to sample `perm(seed, p // n)(p % n)`: every epoch is a permutation of
    its own and contains every sample exactly once. The permutation is a Feistel network over the grid `Z_rows x
    Z_columns` (the generalised form of Black and Rogaway 2002, "Ciphers with arbitrary finite domains") with cycle
    walking. The grid has hardly more cells than the stream has samples, so walks are rare at any length.

    Args:
        length: Number of samples of the stream, or `[num_streams]`.
        seed: Key of the stream, or `[num_streams]`.
        shuffle: `False` keeps the dataset's own order; one value, or `[num_streams]`.

    Raises:
        ValueError: If a length is below 1 or above 2**62 - 1, or the arguments differ in length.

    Example:
        >>> Permutation(length=5, seed=7).indices(start=0, count=5).tolist()
        [3, 1, 4, 2, 0]
    """

    def __init__(self, length: int | Sequence[int], seed: int | Sequence[int], shuffle: bool | Sequence[bool] = True):
        if wrong := [n for n in np.atleast_1d(np.asarray(length)).tolist() if not 1 <= n <= _LONGEST]:
            raise InvalidValueError(option="length", expected=f"from 1 to {_LONGEST:,}", found=wrong[0])
        lengths = np.atleast_1d(np.asarray(length, dtype=np.int64))
        seeds = np.atleast_1d(np.asarray(seed)).astype(np.int64, casting="unsafe").view(np.uint64)
        if lengths.shape != seeds.shape:
            raise InvalidValueError(
                f"length and seed must have one entry per stream, got {len(lengths)} and {len(seeds)}.", option="length"
            )
        self._lengths = lengths
        self._keys = mix_bits(seeds + _GOLDEN)
        self._rows = np.array([isqrt(int(n) - 1) + 1 for n in lengths], dtype=np.uint64)  # rounded up
        # An even number of columns: with two odd sides every round is an even permutation, and odd ones would be rarer.
        self._columns = 2 * -(-lengths // (2 * self._rows.astype(np.int64)))
        self._small = lengths < _SMALL
        self._shuffle = np.broadcast_to(np.asarray(shuffle, dtype=bool), lengths.shape)

    def indices(self, start: int, count: int, stream_id: int = 0) -> Int64Array:
        """Returns the dataset indices of consecutive positions of one stream, across epochs.

        Args:
            start: First position, counted from the start of the first epoch.
            count: Number of positions.
            stream_id: Stream, if there are several.

        Returns:
            int64 `[count]`: indices into the stream's dataset.
        """
        return self.map_positions(np.full(count, stream_id), np.arange(start, start + count, dtype=np.int64))

    def map_positions(self, stream_ids: ArrayLike, positions: ArrayLike) -> Int64Array:
        """Returns the dataset indices of positions of several streams in one vectorised call.

        Args:
            stream_ids: int `[count]`: stream of each position.
            positions: int64 `[count]`: non-negative positions in those streams.

        Returns:
            int64 `[count]`: indices into the streams' datasets.
        """
        ids = np.asarray(stream_ids, dtype=np.int64)
        epochs, offsets = np.divmod(np.asarray(positions, dtype=np.int64), self._lengths[ids])
        indices = self._walk(self._permute, ids, epochs, offsets)
        return indices if self._shuffle.all() else np.where(self._shuffle[ids], indices, offsets)

    def positions(self, indices: ArrayLike, epochs: ArrayLike, stream_id: int = 0) -> Int64Array:
        """Returns where samples of one stream stand in its order: the inverse of `map_positions`.

        Args:
            indices: int64 `[count]`: indices into the stream's dataset.
            epochs: int64 `[count]`: epoch of each, from 0; or one for all.
            stream_id: Stream, if there are several.

        Returns:
            int64 `[count]`: positions, counted from the start of the first epoch.

        Example:
            >>> Permutation(length=5, seed=7).positions([3, 1], epochs=0).tolist()
            [0, 1]
        """
        cells, in_epochs = np.broadcast_arrays(np.asarray(indices, np.int64), np.asarray(epochs, np.int64))
        if self._shuffle[stream_id]:
            cells = self._walk(self._unpermute, np.full(cells.shape, stream_id), in_epochs, cells)
        positions: Int64Array = in_epochs * self._lengths[stream_id] + cells
        return positions

    def _walk(self, permute: _Permute, ids: Int64Array, epochs: Int64Array, cells: Int64Array) -> Int64Array:
        """Permutes cells of an epoch, again and again until they fall inside the stream (cycle walking)."""
        keys = mix_bits(self._keys[ids] + epochs.view(np.uint64) * _GOLDEN)
        indices = permute(ids, keys, cells)
        outside = np.flatnonzero(indices >= self._lengths[ids])
        while outside.size:
            indices[outside] = permute(ids[outside], keys[outside], indices[outside])
            outside = outside[indices[outside] >= self._lengths[ids[outside]]]
        return indices

    def _permute(self, ids: Int64Array, keys: UInt64Array, cells: Int64Array) -> Int64Array:
        cells = self._feistel(ids, keys, cells)
        small = np.flatnonzero(self._small[ids])
        if small.size:
            cells[small] = self._feistel(ids[small], ~keys[small], cells[small])
        return cells

    def _unpermute(self, ids: Int64Array, keys: UInt64Array, cells: Int64Array) -> Int64Array:
        small, cells = np.flatnonzero(self._small[ids]), cells.copy()
        if small.size:
            cells[small] = self._unfeistel(ids[small], ~keys[small], cells[small])
        return self._unfeistel(ids, keys, cells)

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

    def _unfeistel(self, ids: Int64Array, keys: UInt64Array, cells: Int64Array) -> Int64Array:
        """Undoes the rounds, from the last to the first."""
        columns = self._columns[ids]
        left, right = (half.view(np.uint64) for half in np.divmod(cells, columns))
        left_size, right_size = self._rows[ids], columns.view(np.uint64)
        for round_constant in _ROUND_CONSTANTS[::-1]:
            left, right, left_size, right_size = right, left, right_size, left_size
            word = mix_bits(right + keys + round_constant)
            left = left - (((word >> _SHIFT_32) * left_size) >> _SHIFT_32)
            left = np.minimum(left, left + left_size)  # wrapped around, it is huge
        return (left * columns.view(np.uint64) + right).view(np.int64)


class PermutationBlock:
    """One stream's permutation, precomputed in blocks.

    A call has a fixed cost: mapping thousands of positions at once and looking them up makes small steps about fifty
    times cheaper.

    Args:
        order: Permutation of one stream.
        length: Positions per block.
    """

    def __init__(self, order: Permutation, length: int = 4_096):
        self._order = order
        self._length = length
        self._start = 0
        self._table: Int64Array = np.zeros(0, dtype=np.int64)

    def read(self, positions: range | Int64Array) -> Int64Array:
        """Returns the dataset indices of positions.

        Args:
            positions: `[count]`: positions in ascending order.

        Returns:
            int64 `[count]`: indices into the dataset; read-only.
        """
        if not len(positions):
            return self._table[:0]
        start, stop = int(positions[0]), int(positions[-1]) + 1
        if not self._start <= start <= stop <= self._start + len(self._table):
            if stop - start > self._length or self._are_apart(positions, start):
                own = np.asarray(positions, dtype=np.int64)
                return self._order.map_positions(np.zeros(len(own), dtype=np.int64), own)
            self._start, self._table = start, self._order.indices(start, self._length)
        if isinstance(positions, range):
            indices: Int64Array = self._table[start - self._start : stop - self._start : positions.step]
            return indices
        return self._table[positions - self._start]

    def _are_apart(self, positions: range | Int64Array, start: int) -> bool:
        """Whether these are few and far from the block, as those of a measurement, so that the next steps keep it."""
        is_far = not self._start <= start < self._start + 2 * self._length
        return is_far and len(self._table) > 0 and not isinstance(positions, range) and len(positions) < _FEW


Order = Permutation
"""The order in which a stream's samples are drawn, under its public name; see `Permutation`."""
