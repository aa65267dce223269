"""Queues of slots, one per group, with removal from the middle."""

from array import array

import numpy as np

from mixer.utils.arrays import Int64Array


class Queues:
    """Slots by group, in the order of arrival: rings of links, so that every operation takes O(1).

    Each ring begins and ends at a mark of its own, node `num_slots + group`.

    Args:
        num_slots: Number of slots, each of which is in at most one queue; 12 bytes each.
    """

    def __init__(self, num_slots: int):
        empty = array("i", bytes(4 * num_slots))
        self._num_slots = num_slots
        self._next, self._previous, self._group_of = empty[:], empty[:], empty

    def _link(self, before: int, after: int) -> None:
        self._next[before], self._previous[after] = after, before

    def first(self, group: int) -> int:
        """Returns the oldest slot of a group that has one."""
        return self._next[self._num_slots + group]

    def push(self, slot: int, group: int) -> None:
        """Puts a slot that is in no queue at the end of one; groups are numbered from 0."""
        mark = self._num_slots + group
        while mark >= len(self._next):
            self._next.append(len(self._next))
            self._previous.append(len(self._previous))
        self._group_of[slot] = group
        self._link(self._previous[mark], slot)
        self._link(slot, mark)

    def take(self, slot: int) -> int:
        """Takes a slot out of its queue, and returns its group."""
        self._link(self._previous[slot], self._next[slot])
        return self._group_of[slot]

    def rename(self, old: int, new: int) -> None:
        """Puts a slot that is in no queue in the place of another one, which leaves."""
        self._group_of[new] = self._group_of[old]
        self._link(self._previous[old], new)
        self._link(new, self._next[old])

    def state(self) -> Int64Array:
        """Returns int64 `[2, count]`: slots and their groups, each queue's from its front."""
        slots = array("i")
        for mark in range(self._num_slots, len(self._next)):
            slot = self._next[mark]
            while slot != mark:
                slots.append(slot)
                slot = self._next[slot]
        groups = array("i", (self._group_of[slot] for slot in slots))
        return np.array([slots, groups], dtype=np.int64)

    def load(self, state: Int64Array) -> None:
        """Fills the queues, which are empty, from the result of `state`."""
        for slot, group in np.asarray(state).T.tolist():
            self.push(slot, group)
