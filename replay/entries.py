"""What a buffer knows of its entries: columns of numbers, a slot an entry."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Int64Array = NDArray[np.int64]

# `address` is where the sample is read (-1 for nowhere), `row` the number of what is kept of it (-1 for nothing),
# `number` counts entries and is never given again.
_COLUMNS = {"address": np.int64, "row": np.int64, "number": np.int64, "task": np.int32, "label": np.int32}
_FIRST_ROOM = 1_024


class Entries:
    """The taken slots of a buffer, 0 to `size - 1`: 32 bytes each.

    Args:
        capacity: Number of slots.
    """

    def __init__(self, capacity: int):
        self.capacity, self.size = capacity, 0
        self._columns = {name: np.zeros(0, dtype=dtype) for name, dtype in _COLUMNS.items()}

    def __getitem__(self, column: str) -> NDArray[Any]:
        """Gives a column.

        Args:
            column: `"address"`, `"row"`, `"number"`, `"task"` or `"label"`.

        Returns:
            `[size]`: a view.
        """
        return self._columns[column][: self.size]

    def put(self, slots: Int64Array, **values: Any) -> None:
        """Fills slots, new ones or such that are taken.

        Args:
            slots: int64 `[count]`: different slots; all that are new follow upon those that are taken.
            **values: Columns: `[count]` each, or one number for all.
        """
        if not len(slots):
            return
        self.size = max(self.size, int(slots.max()) + 1)
        room = len(self._columns["address"])
        if self.size > room:
            room = min(self.capacity, max(2 * room, self.size, _FIRST_ROOM))
            for name, column in self._columns.items():
                self._columns[name] = np.resize(column, room) if len(column) else np.zeros(room, column.dtype)
        for name, column in self._columns.items():
            column[slots] = values[name]

    def remove(self, slot: int) -> None:
        """Frees a slot: what stands in the last one comes in its place.

        Args:
            slot: A taken slot.
        """
        last = self.size - 1
        for column in self._columns.values():
            column[slot] = column[last]
        self.size = last

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Gives all columns."""
        return {name: self[name].copy() for name in _COLUMNS}

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Takes up saved columns.

        Args:
            state: What `state_dict` gave.
        """
        self.size = 0
        if len(state["address"]):
            self.put(np.arange(len(state["address"])), **state)
