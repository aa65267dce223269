"""Least recently replayed entries first."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mixer.utils.arrays import Int64Array
from replay.retrieval.base import Retrieval

_GONE = -1


class LeastRecent(Retrieval):
    """Draws the least recently replayed entries: every entry is replayed before any is repeated.

    Round robin over the entries; as an eviction rule it is known as least recently used. A new entry counts as replayed
    when it is stored, since it was just trained on.

    Entries form a line. Drawing or replacing an entry leaves a gap and moves it to the end; the line has room for twice
    the capacity and is compacted when full, so that an entry costs O(1) on average, and 16 bytes per slot.
    """

    remembered = ("_position",)

    def start(self, capacity: int, key: int) -> None:
        """Begins with an empty buffer; see `Retrieval.start`."""
        self._capacity = capacity
        self._line = np.full(2 * capacity, _GONE, dtype=np.int32)
        self._places = np.full(capacity, _GONE, dtype=np.int64)  # of each slot in the line
        self._head = self._tail = 0
        self._position = 0

    def slots(self, start: int, count: int, size: int) -> Int64Array:
        """Gives the first in the line, or for a later position those that will be first; see `Retrieval.slots`."""
        if count == 0:
            return np.zeros(0, dtype=np.int64)
        skipped = (start - self._position) % size  # what is drawn goes to the end, so that draws go round
        front = self._front(min(size, skipped + count))
        slots: Int64Array = front[np.arange(skipped, skipped + count) % size]
        return slots

    def _front(self, count: int) -> Int64Array:
        reach = max(count, 64)
        while True:
            window = self._line[self._head : min(self._head + reach, self._tail)]
            there = window[window != _GONE]
            if len(there) >= count or self._head + reach >= self._tail:
                return np.array(there[:count], dtype=np.int64)
            reach *= 2

    def drawn(self, start: int, slots: Int64Array) -> None:
        """Sends entries to the end of the line; see `Retrieval.drawn`."""
        self._position = start + len(slots)
        self.placed(slots)

    def placed(self, slots: Int64Array) -> None:
        """Sends new entries to the end of the line; see `Retrieval.placed`."""
        places = self._places[slots]
        self._line[places[places != _GONE]] = _GONE
        if self._tail + len(slots) > len(self._line):
            self._places[slots] = _GONE
            self._stand(self._line[self._head : self._tail])
        stop = self._tail + len(slots)
        self._line[self._tail : stop] = slots
        self._places[slots] = np.arange(self._tail, stop)
        self._tail = stop
        first = self._front(1)
        self._head = int(self._places[first[0]]) if len(first) else self._tail

    def removed(self, slot: int, last: int) -> None:
        """Takes an entry out of the line; see `Retrieval.removed`."""
        self._line[self._places[slot]] = _GONE
        if slot != last:
            self._line[self._places[last]] = slot
            self._places[slot] = self._places[last]
        self._places[last] = _GONE

    def _stand(self, line: NDArray[np.int32]) -> None:
        there = line[line != _GONE]
        self._line[: len(there)] = there
        self._line[len(there) :] = _GONE
        self._places[there] = np.arange(len(there))
        self._head, self._tail = 0, len(there)

    def state_dict(self) -> dict[str, Any]:
        """Gives the line; see `Retrieval.state_dict`."""
        line = self._line[self._head : self._tail]
        return {**super().state_dict(), "line": line[line != _GONE]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes up the line; see `Retrieval.load_state_dict`."""
        super().load_state_dict(state)
        line = np.asarray(state["line"], dtype=np.int32)
        if len(line) > self._capacity or line.max(initial=-1) >= self._capacity:
            raise ValueError(
                f"{self.name} has room for {self._capacity} entries, but the saved state is of a larger buffer, with "
                f"{len(line)}; give the capacity that it was saved with."
            )
        self._places.fill(_GONE)
        self._stand(line)
