"""Bases of selections that hold one number per entry."""

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from mixer.utils.arrays import FloatArray, Int64Array
from replay.selection.base import Selection
from replay.selection.shared.slot_trees import MinimumTree, SlotTree


class SlotValues(Selection):
    """Holds one number per entry, in a tree that `start` of a subclass creates.

    `column` is the name of the numbers in the saved state.
    """

    column: ClassVar[str]
    _tree: SlotTree

    def remove(self, slot: int) -> None:
        """Removes an entry; the next accepted sample takes the room; see `Selection.remove`."""
        self._size -= 1
        self._tree.remove(slot, self._size)

    def state_dict(self) -> dict[str, Any]:
        """Returns the numbers of the entries; see `Selection.state_dict`."""
        return {"capacity": self._capacity, self.column: self._tree.values(self._size)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Loads the numbers of the entries; see `Selection.load_state_dict`."""
        super().load_state_dict(state)
        self._tree.load(np.asarray(state[self.column], dtype=np.float64))
        self._size = len(state[self.column])


class LargestValues(SlotValues):
    """Keeps the samples with the largest numbers; of equal ones the first.

    A sample that is kept costs O(log capacity), one that is not hardly anything.
    """

    _tree: MinimumTree

    def start(self, capacity: int, key: int) -> None:
        """Starts with an empty buffer; see `Selection.start`."""
        super().start(capacity, key)
        self._tree = MinimumTree(capacity)

    def place(self, values: FloatArray) -> Int64Array:
        """Decides on samples one after the other.

        Args:
            values: `[count]`: their numbers, none NaN or plus infinity.

        Returns:
            int64 `[count]`: the slot that each takes, or -1.
        """
        slots = np.full(len(values), -1, dtype=np.int64)
        num_new = min(self._capacity - self._size, len(values))
        for index, value in enumerate(values[:num_new].tolist()):
            slots[index] = self._size
            self._tree.set(self._size, value)
            self._size += 1
        # The least value only rises, so that what does not exceed it now is not kept later either.
        candidates = num_new + np.flatnonzero(values[num_new:] > self._tree.least)
        for index, value in zip(candidates.tolist(), values[candidates].tolist(), strict=True):
            if value > self._tree.least:
                slots[index] = slot = self._tree.least_slot()
                self._tree.set(slot, value)
        return slots
