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
        places = np.asarray(positions, dtype=np.int64)
        indices = np.empty(len(places), dtype=np.int64)
        for are_in, start, window in self._windows(places):
            indices[are_in] = window[places[are_in] - start]
        return indices

    def map_positions(self, stream_ids: ArrayLike, positions: ArrayLike) -> Int64Array:
        """Returns the dataset indices of positions of the one stream; see `Permutation.map_positions`."""
        return self.read(np.asarray(positions, dtype=np.int64))

    def positions(self, indices: ArrayLike, epochs: ArrayLike) -> Int64Array:
        """Returns where samples stand in the order: the inverse of `read`; see `Permutation.positions`."""
        rows, in_epochs = np.broadcast_arrays(np.asarray(indices, np.int64), np.asarray(epochs, np.int64))
        places = np.empty(rows.shape, dtype=np.int64)
        for are_in, start, window in self._windows(self._order.positions(rows, in_epochs)):
            by_row = np.argsort(window)
            places[are_in] = start + by_row[np.searchsorted(window, rows[are_in], sorter=by_row)]
        return places

    def _windows(self, places: Int64Array) -> Iterator[tuple[BoolArray, int, Int64Array]]:
        """Yields which positions each window has, the first of its own, and its indices in order."""
        waiting = np.ones(places.shape, dtype=np.bool_)
        while waiting.any():
            start, stop = self._bounds(int(places.flat[waiting.argmax()]))
            are_in = (places >= start) & (places < stop)
            yield are_in, start, self._of_window(start, stop)
            waiting &= ~are_in

    def _bounds(self, position: int) -> tuple[int, int]:
        """Returns where the window of a position starts and stops."""
        epoch, offset = divmod(position, self._length)
        begin, steps = epoch * self._steps_per_epoch, self._steps_per_window
        first = math.ceil(begin / steps - 0.5)  # a part of less than half of a window joins its neighbour
        last = max(math.floor((begin + self._steps_per_epoch) / steps - 0.5), first)

        def start_of(number: int) -> int:
            inside = math.ceil((number * steps - begin) * self._size - 0.5)
            return 0 if number <= first else self._length if number > last else inside

        number = min(max(int((begin + (offset + 0.5) / self._size) / steps), first), last)
        number -= offset < start_of(number)  # where rounding moved it
        number += offset >= start_of(number + 1)
        return position - offset + start_of(number), position - offset + start_of(number + 1)

    def _ordered(self, start: int, stop: int) -> Int64Array:
        """Returns the indices of a window, in order."""
        indices = self._order.indices(start, stop - start)
        by_length = indices[np.argsort(-self._read_lengths(indices), kind="stable")]
        epoch, offset = divmod(start, self._length)
        into_epoch = (offset + np.arange(stop - start) + 0.5) / self._size
        runs, places = np.divmod((epoch * self._steps_per_epoch + into_epoch).astype(np.int64), _STEPS_OF_RUN)
        turns = self._runs.map_positions(np.zeros_like(runs), runs) * _STEPS_OF_RUN + places
        indices[np.argsort(turns, kind="stable")] = by_length
        return indices
