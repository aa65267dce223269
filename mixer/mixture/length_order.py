"""The order of a stream whose neighbours have similar lengths, so that micro-batches need little padding."""

import functools
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from mixer.mixture.permutation import Permutation
from mixer.utils.arrays import Int64Array

ReadLengths = Callable[[Int64Array], Int64Array]
_GROUPS = 50  # of a window, as in the LengthGroupedSampler of transformers
_MOST_WINDOWS_KEPT = 16
# Steps of a run with neighbouring lengths, so that a sample drawn a step early or late still fits.
_STEPS_OF_RUN = 5


class LengthGroups(NamedTuple):
    """Which streams are drawn in groups of similar length.

    Args:
        size: Samples of a step.
        readers: Of each such stream, by its number, a function from indices into its dataset to lengths.
    """

    size: int
    readers: Mapping[int, ReadLengths]


NO_GROUPS = LengthGroups(0, {})


class LengthOrder:
    """Order of one stream by length, in turns that all streams of a mixture share.

    The permuted positions of an epoch are cut into equal windows of about 50 groups. Position `p` belongs to step
    `p / size`. All streams visit lengths in the same turns: the samples of a window are sorted by length, from long to
    short, in the order of their steps' turns, so that a step has samples of few lengths as long as each stream has its
    share. Turns are in runs of neighbouring lengths, which are shuffled. Position `p` is thus known without what came
    before, and every sample comes once an epoch.

    Args:
        order: The stream's permutation.
        length: Samples of the stream.
        size: Samples of a group: those that a step takes of this stream on average.
        read_lengths: Returns the lengths of samples, given their indices.
        turns: Key of the turns, the same for all streams.
    """

    def __init__(self, order: Permutation, length: int, size: float, read_lengths: ReadLengths, turns: int):
        self._order, self._length = order, length
        self._read_lengths, self._size = read_lengths, max(size, 1.0 / _GROUPS)  # a window has a sample at least
        self._runs = Permutation(_GROUPS // _STEPS_OF_RUN, turns)
        self._window = -(-length // max(round(length / (self._size * _GROUPS)), 1))
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
        first_step = round(epoch * self._length / self._size)  # an epoch of one stream begins with a step
        steps = first_step + ((start + np.arange(len(indices)) + 0.5) / self._size).astype(np.int64)
        runs, places = np.divmod(steps, _STEPS_OF_RUN)
        turns = self._runs.map_positions(np.zeros_like(runs), runs) * _STEPS_OF_RUN + places
        indices[np.argsort(turns, kind="stable")] = by_length
        return indices
