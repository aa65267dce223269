"""Trees over the slots of a buffer, for selections that hold a number per entry, in O(log capacity)."""

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from mixer.utils.arrays import FloatArray, Int64Array
from replay.selection.base import Selection


class SlotTree:
    """A number for each slot, and what combines those below it in each inner node.

    Node `i` stands over nodes `2i` and `2i + 1`, and slot `s` is node `num_slots + s`: any number of slots makes a
    tree, at 16 bytes each. Inner nodes are always computed from the two below them, so that they are the same whatever
    came before.

    Args:
        num_slots: Number of slots.
        empty: Value of slots that are not taken.
        combine: Ufunc that makes a node's value of the two below.
    """

    def __init__(self, num_slots: int, empty: float, combine: np.ufunc):
        self._num_slots, self._empty, self._combine = num_slots, empty, combine
        self._array: FloatArray = np.full(2 * num_slots, empty)
        # A view reads and writes single numbers faster than numpy does.
        self._nodes: memoryview[float] = self._array.data.cast("B").cast("d")

    def values(self, size: int) -> FloatArray:
        """Gives the values of the first slots.

        Args:
            size: How many.

        Returns:
            float64 `[size]`: a copy.
        """
        return self._array[self._num_slots : self._num_slots + size].copy()

    def load(self, values: FloatArray) -> None:
        """Sets the first slots and empties the others.

        Args:
            values: `[size]`: their values.
        """
        self._array.fill(self._empty)
        self._array[self._num_slots : self._num_slots + len(values)] = values
        stop = self._num_slots
        while stop > 1:  # the nodes whose two below are both done
            start = (stop + 1) // 2
            below = self._array[2 * start : 2 * stop]
            self._array[start:stop] = self._combine(below[::2], below[1::2])
            stop = start

    def get(self, slot: int) -> float:
        """Gives the value of a slot."""
        return self._nodes[self._num_slots + slot]

    def set(self, slot: int, value: float) -> None:
        """Changes the value of a slot.

        Args:
            slot: The slot.
            value: Its new value.
        """
        raise NotImplementedError

    def remove(self, slot: int, last: int) -> None:
        """Gives a slot the value of the last one, which becomes empty.

        Args:
            slot: The slot.
            last: The last taken slot.
        """
        self.set(slot, self.get(last))
        self.set(last, self._empty)


class MinimumTree(SlotTree):
    """Knows the slot with the least value.

    Args:
        num_slots: Number of slots.
    """

    def __init__(self, num_slots: int):
        super().__init__(num_slots, np.inf, np.minimum)

    @property
    def least(self) -> float:
        """The least value."""
        return self._nodes[1]

    def least_slot(self) -> int:
        """Finds a slot with the least value; of several always the same one."""
        nodes, node, num_slots = self._nodes, 1, self._num_slots
        while node < num_slots:
            node *= 2
            if nodes[node + 1] < nodes[node]:
                node += 1
        return node - num_slots

    def set(self, slot: int, value: float) -> None:
        """Changes the value of a slot; see `SlotTree.set`."""
        nodes, node = self._nodes, self._num_slots + slot
        nodes[node] = value
        while node > 1:
            other = nodes[node ^ 1]
            node >>= 1
            value = other if other < value else value
            if nodes[node] == value:
                return  # nothing changes further up
            nodes[node] = value


class SumTree(SlotTree):
    """Draws slots by weight.

    Args:
        num_slots: Number of slots.
    """

    def __init__(self, num_slots: int):
        super().__init__(num_slots, 0.0, np.add)

    def find(self, uniform: float) -> int:
        """Finds the slot at which a share of the total weight is reached.

        Args:
            uniform: A number in [0, 1); if it is even there, each slot is found with a probability in proportion to its
                weight.

        Returns:
            The slot.
        """
        nodes, node, num_slots = self._nodes, 1, self._num_slots
        target = uniform * nodes[1]
        while node < num_slots:
            node *= 2
            if target >= nodes[node]:
                target -= nodes[node]
                node += 1
        return node - num_slots

    def set(self, slot: int, value: float) -> None:
        """Changes the weight of a slot; see `SlotTree.set`."""
        nodes, node = self._nodes, self._num_slots + slot
        nodes[node] = value
        while node > 1:
            node >>= 1
            nodes[node] = nodes[2 * node] + nodes[2 * node + 1]


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
        return {**super().state_dict(), self.column: self._tree.values(self._size)}

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
