"""The samples with the largest values."""

import numpy as np

from mixer.utils.arrays import FloatArray, Int64Array
from replay.selection.shared.slot_trees import MinimumTree


class Largest:
    """Keeps the samples with the `capacity` largest values; of equal ones that which came first.

    A sample that is kept costs O(log capacity), one that is not hardly anything.

    Args:
        capacity: Number of slots.
    """

    def __init__(self, capacity: int):
        self._tree = MinimumTree(capacity)
        self._capacity = capacity
        self.size = 0

    @property
    def is_full(self) -> bool:
        """Whether all slots are taken."""
        return self.size == self._capacity

    @property
    def least(self) -> float:
        """The least value that is kept."""
        return self._tree.least

    @property
    def values(self) -> FloatArray:
        """float64 `[size]`: the value of each slot, a copy."""
        return self._tree.values(self.size)

    def offer(self, values: FloatArray) -> Int64Array:
        """Decides on samples one after the other.

        Args:
            values: `[count]`: their values, none NaN or plus infinity.

        Returns:
            int64 `[count]`: the slot that each takes, or -1.
        """
        slots = np.full(len(values), -1, dtype=np.int64)
        num_new = min(self._capacity - self.size, len(values))
        for index, value in enumerate(values[:num_new].tolist()):
            slots[index] = self.size
            self._tree.set(self.size, value)
            self.size += 1
        # The least value only rises, so that what does not exceed it now is not kept later either.
        candidates = num_new + np.flatnonzero(values[num_new:] > self.least)
        for index, value in zip(candidates.tolist(), values[candidates].tolist(), strict=True):
            if value > self.least:
                slots[index] = slot = self._tree.least_slot()
                self._tree.set(slot, value)
        return slots

    def remove(self, slot: int) -> None:
        """Forgets an entry: the last one stands in its slot afterwards.

        Args:
            slot: A taken slot.
        """
        self.size -= 1
        self._tree.remove(slot, self.size)

    def load(self, values: FloatArray) -> None:
        """Takes up saved values.

        Args:
            values: `[size]`: the value of each slot.
        """
        self._tree.load(values)
        self.size = len(values)
