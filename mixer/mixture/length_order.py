"""The order of a stream whose neighbours have similar lengths, so that micro-batches need little padding."""

import functools
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from mixer.mixture.permutation import Permutation
from mixer.utils.arrays import Int64Array

ReadLengths = Callable[[Int64Array], Int64Array]
_MOST_GROUPS = 50  # of a window; both as in the LengthGroupedSampler of transformers
_LEAST_WINDOWS = 4  # of an epoch
_MOST_WINDOWS_KEPT = 16


class LengthGroups(NamedTuple):
    """Which streams are drawn in groups of similar length.

    Args:
        size: Samples of a group: those of a step, so that a step has samples of few lengths.
        readers: Of each such stream, by its number, a function from indices into its dataset to lengths.
    """

    size: int
    readers: Mapping[int, ReadLengths]


NO_GROUPS = LengthGroups(0, {})


class LengthOrder:
    """Order of one stream in groups of similar length; it depends on its key and on lengths alone.

    The permuted positions of an epoch are cut into windows. The samples of a window are sorted by length and cut into
    groups, which are shuffled; the rest of the last window comes last. Position `p` is thus known without what came
    before, and every sample comes once an epoch.

    Args:
        order: The stream's permutation.
        length: Samples of the stream.
        key: Key of the stream.
        size: Samples of a group.
        read_lengths: Returns the lengths of samples, given their indices.
    """

    def __init__(self, order: Permutation, length: int, key: int, size: int, read_lengths: ReadLengths):
        self._order, self._length, self._key = order, length, ~key  # else groups and samples are shuffled alike
        self._size, self._read_lengths = size, read_lengths
        self._window = size * min(max(length // (size * _LEAST_WINDOWS), 1), _MOST_GROUPS)
        self._per_epoch = -(-length // self._window)
        self._of_window = functools.lru_cache(_MOST_WINDOWS_KEPT)(self._ordered)

    def read(self, positions: range | Int64Array) -> Int64Array:
        """Returns the dataset indices of positions, int64 `[count]`; see `PermutationBlock.read`."""
        places = np.asarray(positions, dtype=np.int64)
        epochs, offsets = np.divmod(places, self._length)
        windows = epochs * self._per_epoch + offsets // self._window
        indices = np.empty(len(places), dtype=np.int64)
        for window in np.unique(windows).tolist():
            are_in = windows == window
            indices[are_in] = self._of_window(window)[offsets[are_in] % self._window]
        return indices

    def map_positions(self, stream_ids: ArrayLike, positions: ArrayLike) -> Int64Array:
        """Returns the dataset indices of positions of the one stream; see `Permutation.map_positions`."""
        return self.read(np.asarray(positions, dtype=np.int64))

    def positions(self, indices: ArrayLike, epochs: ArrayLike) -> Int64Array:
        """Returns where samples stand in the order: the inverse of `read`; see `Permutation.positions`."""
        rows, in_epochs = np.broadcast_arrays(np.asarray(indices, np.int64), np.asarray(epochs, np.int64))
        offsets = self._order.positions(rows, in_epochs) - in_epochs * self._length
        windows = in_epochs * self._per_epoch + offsets // self._window
        places = np.empty(rows.shape, dtype=np.int64)
        for window in np.unique(windows).tolist():
            are_in, of_window = windows == window, self._of_window(window)
            by_row = np.argsort(of_window)
            start = window % self._per_epoch * self._window
            places[are_in] = start + by_row[np.searchsorted(of_window, rows[are_in], sorter=by_row)]
        return in_epochs * self._length + places

    def _ordered(self, window: int) -> Int64Array:
        """Returns the indices of a window, in order."""
        epoch, number = divmod(window, self._per_epoch)
        start = number * self._window
        indices = self._order.indices(epoch * self._length + start, min(self._window, self._length - start))
        by_length = indices[np.argsort(-self._read_lengths(indices), kind="stable")]
        num_groups = len(by_length) // self._size
        if num_groups:
            groups = by_length[: num_groups * self._size].reshape(num_groups, self._size)
            shuffled = Permutation(num_groups, self._key).indices(window * num_groups, num_groups)
            by_length[: groups.size] = groups[shuffled].ravel()
        return by_length
