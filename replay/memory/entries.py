"""Table of the entries of a buffer, one slot per entry."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mixer.utils.arrays import Int64Array
from mixer.utils.errors import InvalidValueError

# `address` is where the sample is read (-1 for nowhere), `row` the number of what is kept of it (-1 for nothing),
# `number` counts entries and is never given again.
_ENTRY = np.dtype(
    [("address", np.int64), ("row", np.int64), ("number", np.int64), ("task", np.int32), ("label", np.int32)]
)
_COLUMNS = _ENTRY.names or ()
_FIRST_ROOM = 1_024
_LEAST_CHANGES, _SLOTS_PER_CHANGE = 1_024, 16  # after which addresses are sorted anew


class Entries:
    """The occupied slots of a buffer, 0 to `size - 1`: 32 bytes each, and about 20 to find them by address.

    Args:
        capacity: Number of slots.
    """

    def __init__(self, capacity: int):
        self.capacity, self.size = capacity, 0
        self._table: NDArray[Any] = np.zeros(0, dtype=_ENTRY)
        # Where addresses were when they were sorted, and where those are that came or moved since. Both may be out of
        # date; the table says what is so.
        self._sorted, self._order = np.zeros((2, 0), dtype=np.int64)
        self._changed: dict[int, int] = {}

    def __getitem__(self, column: str) -> NDArray[Any]:
        """Returns a column.

        Args:
            column: `"address"`, `"row"`, `"number"`, `"task"` or `"label"`.

        Returns:
            `[size]`: a view.
        """
        view: NDArray[Any] = self._table[column][: self.size]
        return view

    def find(self, addresses: Int64Array) -> Int64Array:
        """Finds entries by address.

        Args:
            addresses: int64 `[count]`.

        Returns:
            int64 `[count]`: their slots, -1 where there is none.
        """
        changed, own = self._changed, self["address"]
        slots = np.full(len(addresses), -1, dtype=np.int64)
        if len(self._sorted):
            places = np.searchsorted(self._sorted, addresses).clip(max=len(self._sorted) - 1)
            slots = np.where(self._sorted[places] == addresses, self._order[places], -1).astype(np.int64)
        pairs = zip(addresses.tolist(), slots.tolist(), strict=True)
        slots = np.array([changed.get(address, slot) for address, slot in pairs], dtype=np.int64)
        are_there = (addresses >= 0) & (slots >= 0) & (slots < self.size)
        are_there[are_there] = own[slots[are_there]] == addresses[are_there]
        return np.where(are_there, slots, -1)

    def _moved(self, slots: Int64Array) -> None:
        """Records the addresses in changed slots, for `find`."""
        self._changed.update(zip(self["address"][slots].tolist(), slots.tolist(), strict=True))
        if len(self._changed) > max(_LEAST_CHANGES, self.size // _SLOTS_PER_CHANGE):
            order = np.argsort(self["address"], kind="stable")
            self._order, self._sorted, self._changed = order.astype(np.int32), self["address"][order], {}

    def put(self, slots: Int64Array, **values: Any) -> None:
        """Fills slots, new or occupied ones.

        Args:
            slots: int64 `[count]`: different slots; new ones follow upon the occupied ones.
            **values: Columns: `[count]` each, or one number for all.
        """
        if not len(slots):
            return
        size = max(self.size, int(slots.max()) + 1)
        self._make_room(size)
        self.size = size
        for name in _COLUMNS:
            self._table[name][slots] = values[name]
        self._moved(slots)

    def set_rows(self, slots: Int64Array, rows: Int64Array) -> None:
        """Changes the numbers of the stored rows of some entries."""
        self._table["row"][slots] = rows

    def remove(self, slot: int) -> None:
        """Frees a slot; the entry of the last one moves into it.

        Args:
            slot: An occupied slot.
        """
        self.size -= 1
        self._table[slot] = self._table[self.size]
        if slot < self.size:
            self._moved(np.array([slot]))

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Returns all columns."""
        return {name: self[name].copy() for name in _COLUMNS}

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Loads saved columns.

        Args:
            state: The result of `state_dict`.

        Raises:
            ValueError: If there are more entries than slots.
        """
        size = len(state["number"])
        if size > self.capacity:
            raise InvalidValueError(f"there are {size} entries, and room for {self.capacity}", option="capacity")
        self.size = 0
        if size:
            self.put(np.arange(size), **state)

    def _make_room(self, size: int) -> None:
        if size > len(self._table):
            table = np.zeros(min(self.capacity, max(2 * len(self._table), size, _FIRST_ROOM)), dtype=_ENTRY)
            table[: self.size] = self._table[: self.size]
            self._table = table
