"""The order of a stream whose neighbours have similar lengths, so that micro-batches need little padding."""

import functools
import math
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from mixer.mixture.permutation import Permutation
from mixer.utils.arrays import BoolArray, Int64Array

ReadLengths = Callable[[Int64Array], Int64Array]
# Of a window: twice as many as in the LengthGroupedSampler of transformers, as a step has a part of each stream's.
_GROUPS = 100
_MOST_WINDOWS_KEPT = 16
# Steps of a run with neighbouring lengths, so that a sample drawn a step early or late still fits.
_STEPS_OF_RUN = 5
_RUNS = _GROUPS // _STEPS_OF_RUN  # of a window


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

    Steps are cut into windows of 100, the same for all streams. The samples of a window are sorted by length, from long
    to short, in the order of their steps' turns, so that a step has samples of few lengths as long as each stream has
    its share. Turns are in runs of neighbouring lengths, which are shuffled. Where an epoch begins or ends within a
    window, the part of it joins the next window of that epoch if it is less than half of one. So every sample comes
    once an epoch, and a position is known without what came before.

    Args:
        order: The stream's permutation.
        length: Samples of the stream.
        size: Samples of a group: those that a step takes of this stream on average.
        read_lengths: Returns the lengths of samples, given their indices.
        turns: Key of the turns, the same for all streams.
        is_alone: Whether steps have samples of no other stream: an epoch begins with a step, and its windows are
            equally long.
    """

    def __init__(
        self,
        order: Permutation,
        length: int,
        size: float,
        read_lengths: ReadLengths,
        turns: int,
        is_alone: bool = False,
    ):
        self._order, self._length = order, length
        self._read_lengths, self._size = read_lengths, max(size, 1.0 / _GROUPS)  # a window has a sample at least
        self._runs = Permutation(_RUNS, turns)
        self._steps_per_epoch, self._steps_per_window = length / self._size, float(_GROUPS)
        if is_alone:
            self._steps_per_epoch = math.ceil(self._steps_per_epoch)
            self._steps_per_window = self._steps_per_epoch / max(round(self._steps_per_epoch / _GROUPS), 1)
        self._of_window = functools.lru_cache(_MOST_WINDOWS_KEPT)(self._ordered)

    def read(self, positions: range | Int64Array) -> Int64Array:
        """Returns the dataset indices of positions, int64 `[count]`; see `PermutationBlock.read`."""
        epochs, offsets = np.divmod(np.asarray(positions, dtype=np.int64), self._length)
        indices = np.empty(len(offsets), dtype=np.int64)
        for are_in, start, window in self._windows(epochs, offsets):
            indices[are_in] = window[offsets[are_in] - start]
        return indices

    def map_positions(self, stream_ids: ArrayLike, positions: ArrayLike) -> Int64Array:
        """Returns the dataset indices of positions of the one stream; see `Permutation.map_positions`."""
        return self.read(np.asarray(positions, dtype=np.int64))

    def positions(self, indices: ArrayLike, epochs: ArrayLike) -> Int64Array:
        """Returns where samples stand in the order: the inverse of `read`; see `Permutation.positions`."""
        rows, in_epochs = np.broadcast_arrays(np.asarray(indices, np.int64), np.asarray(epochs, np.int64))
        begins = in_epochs * self._length
        places = np.empty(rows.shape, dtype=np.int64)
        for are_in, start, window in self._windows(in_epochs, self._order.positions(rows, in_epochs) - begins):
            by_row = np.argsort(window)
            places[are_in] = start + by_row[np.searchsorted(window, rows[are_in], sorter=by_row)]
        return begins + places

    def _windows(self, epochs: Int64Array, offsets: Int64Array) -> Iterator[tuple[BoolArray, int, Int64Array]]:
        """Yields which samples each window has, where it starts in its epoch, and its indices in order."""
        for epoch in np.unique(epochs).tolist():
            of_epoch, (first, last) = epochs == epoch, self._numbers(epoch)
            steps = epoch * self._steps_per_epoch + (offsets + 0.5) / self._size
            numbers = (steps / self._steps_per_window).astype(np.int64).clip(first, last)
            numbers -= offsets < self._starts(epoch, numbers)  # where rounding moved it
            numbers += offsets >= self._starts(epoch, numbers + 1)
            for number in np.unique(numbers[of_epoch]).tolist():
                start, stop = self._starts(epoch, np.array([number, number + 1])).tolist()
                yield of_epoch & (numbers == number), start, self._of_window(epoch, start, stop)

    def _numbers(self, epoch: int) -> tuple[int, int]:
        """Returns the first and the last window of an epoch; a part of less than half of one joins its neighbour."""
        begin, steps = epoch * self._steps_per_epoch, self._steps_per_window
        first = math.ceil(begin / steps - 0.5)
        return first, max(math.floor((begin + self._steps_per_epoch) / steps - 0.5), first)

    def _starts(self, epoch: int, numbers: Int64Array) -> Int64Array:
        """Returns where windows start in an epoch; that after the last one starts at its end."""
        (first, last), begin = self._numbers(epoch), epoch * self._steps_per_epoch
        starts = np.ceil((numbers * self._steps_per_window - begin) * self._size - 0.5).astype(np.int64)
        return np.where(numbers <= first, 0, np.where(numbers > last, self._length, starts))

    def _steps(self, epoch: int, offsets: Int64Array) -> Int64Array:
        """Returns the step of each sample if every step takes as many as on average."""
        steps: Int64Array = (epoch * self._steps_per_epoch + (offsets + 0.5) / self._size).astype(np.int64)
        return steps

    def _ordered(self, epoch: int, start: int, stop: int) -> Int64Array:
        """Returns the indices of a window, in order."""
        indices = self._order.indices(epoch * self._length + start, stop - start)
        by_length = indices[np.argsort(-self._read_lengths(indices), kind="stable")]
        runs, places = np.divmod(self._steps(epoch, np.arange(start, stop)), _STEPS_OF_RUN)
        shuffled = self._runs.map_positions(np.zeros_like(runs), runs)
        turns = shuffled * _STEPS_OF_RUN + places
        indices[np.argsort(turns, kind="stable")] = by_length
        return indices
