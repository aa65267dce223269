"""Queues of slots, one per group, with removal from the middle."""

from array import array

import numpy as np

from mixer.utils.arrays import Int64Array

_NONE = -1


class Queues:
    """Slots in the order in which they came, by group; linked lists, so that everything takes the same time.

    Args:
        num_slots: Number of slots, each of which is in one queue at most; 12 bytes each.
    """

    def __init__(self, num_slots: int):
        empty = array("i", [_NONE]) * num_slots
        self._next, self._previous, self._group_of = empty[:], empty[:], empty
        self._first: list[int] = []
        self._last: list[int] = []

    def first(self, group: int) -> int:
        """Gives the oldest slot of a group that has one."""
        return self._first[group]

    def push(self, slot: int, group: int) -> None:
        """Puts a slot that is in no queue at the end of one.

        Args:
            slot: The slot.
            group: Number of the group; groups are numbered as they come.
        """
        while group >= len(self._first):
            self._first.append(_NONE)
            self._last.append(_NONE)
        self._group_of[slot] = group
        self._next[slot] = _NONE
        self._attach(slot, self._last[group])
        self._last[group] = slot

    def take(self, slot: int) -> int:
        """Takes a slot out of its queue.

        Args:
            slot: The slot.

        Returns:
            The group whose queue it was.
        """
        group, before, after = self._group_of[slot], self._previous[slot], self._next[slot]
        if before == _NONE:
            self._first[group] = after
        else:
            self._next[before] = after
        if after == _NONE:
            self._last[group] = before
        else:
            self._previous[after] = before
        return group

    def rename(self, old: int, new: int) -> None:
        """Puts a slot that is in no queue where another one is, which leaves.

        Args:
            old: The slot that leaves.
            new: The slot that comes in its place.
        """
        group, after = self._group_of[old], self._next[old]
        self._group_of[new], self._next[new] = group, after
        self._attach(new, self._previous[old])
        if after == _NONE:
            self._last[group] = new
        else:
            self._previous[after] = new

    def _attach(self, slot: int, before: int) -> None:
        self._previous[slot] = before
        if before == _NONE:
            self._first[self._group_of[slot]] = slot
        else:
            self._next[before] = slot

    def state(self) -> Int64Array:
        """Gives all queues.

        Returns:
            int64 `[2, count]`: slots, and their groups, each queue's from its front.
        """
        slots = array("i")
        for slot in self._first:
            while slot != _NONE:
                slots.append(slot)
                slot = self._next[slot]
        groups = array("i", (self._group_of[slot] for slot in slots))
        return np.array([slots, groups], dtype=np.int64)

    def load(self, state: Int64Array) -> None:
        """Fills the queues, which are empty.

        Args:
            state: What `state` gave.
        """
        for slot, group in zip(*np.asarray(state, dtype=np.int64).tolist(), strict=True):
            self.push(slot, group)
