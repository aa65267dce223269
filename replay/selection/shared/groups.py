"""Groups of samples, such as classes: their slots and sizes, in O(1) for any number of groups."""

from array import array
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from mixer.utils.arrays import Int64Array
from replay.selection.base import Selection

Group = tuple[int, ...]


class Buckets:
    """Numbers from 0 on, each in at most one bucket; insertion, removal and random access take O(1).

    The last member of a bucket fills the gap that another leaves. About 13 bytes per number.
    """

    def __init__(self) -> None:
        self._members: dict[int, array[int]] = {}
        self._bucket_of, self._places = array("i"), array("i")

    def count(self, bucket: int) -> int:
        """Returns how many numbers are in a bucket."""
        return len(self._members.get(bucket, ()))

    def bucket_of(self, number: int) -> int:
        """Returns the bucket of a number."""
        return self._bucket_of[number]

    def pick(self, bucket: int, place: int) -> int:
        """Returns the member of a bucket at a place, 0 to `count(bucket) - 1`."""
        return self._members[bucket][place]

    def put(self, number: int, bucket: int) -> None:
        """Puts a number that is in no bucket into one."""
        while number >= len(self._bucket_of):
            self._bucket_of.append(0)
            self._places.append(0)
        members = self._members.setdefault(bucket, array("i"))
        self._bucket_of[number], self._places[number] = bucket, len(members)
        members.append(number)

    def take(self, number: int) -> int:
        """Takes a number out of its bucket, and returns the bucket."""
        bucket = self._bucket_of[number]
        members = self._members[bucket]
        last = members.pop()
        if last != number:
            members[self._places[number]] = last
            self._places[last] = self._places[number]
        if not members:
            del self._members[bucket]
        return bucket

    def rename(self, old: int, new: int) -> None:
        """Replaces a number by one that is in no bucket; bucket and position stay."""
        self.put(new, self.take(old))

    def state(self) -> Int64Array:
        """Returns int64 `[2, count]`: numbers and their buckets, each bucket's in its order."""
        buckets = sorted(self._members)
        numbers = np.concatenate([np.zeros(0, np.int64), *(self._members[bucket] for bucket in buckets)])
        return np.stack(
            [numbers, np.repeat(np.array(buckets, dtype=np.int64), [self.count(bucket) for bucket in buckets])]
        )

    def load(self, state: Int64Array) -> None:
        """Fills the buckets, which are empty, from the result of `state`."""
        for number, bucket in np.asarray(state).T.tolist():
            self.put(number, bucket)


class GroupSizes:
    """Numbers groups in order of first appearance, counts their entries, and knows the largest ones.

    Args:
        width: Length of a group's name, a tuple of integers.
    """

    def __init__(self, width: int):
        self._width = width
        self._ids: dict[Group, int] = {}
        self._by_size = Buckets()
        self.largest = 0  # size of the largest groups

    @property
    def num_largest(self) -> int:
        """Number of groups of the largest size."""
        return self._by_size.count(self.largest)

    def pick_largest(self, place: int) -> int:
        """Returns one of the largest groups, 0 to `num_largest - 1`."""
        return self._by_size.pick(self.largest, place)

    def size(self, group: int) -> int:
        """Returns the number of entries of a group."""
        return self._by_size.bucket_of(group)

    def number_of(self, name: Group) -> int:
        """Returns the number of a group, a new one for a new name."""
        if name not in self._ids:
            self._by_size.put(len(self._ids), 0)
        return self._ids.setdefault(name, len(self._ids))

    def count_with(self, names: set[Group]) -> int:
        """Returns the number of groups once the groups of these names exist."""
        return len(self._ids) + len(names - self._ids.keys())

    def change(self, group: int, by: int) -> None:
        """Changes the size of a group by 1 or -1."""
        size = self._by_size.take(group) + by
        self._by_size.put(group, size)
        if size > self.largest:
            self.largest = size
        elif not self.num_largest:
            self.largest -= 1  # where the group is now

    def state(self) -> dict[str, Int64Array]:
        """Returns the whole state.

        `"groups"`, int64 `[num_groups, width]`, holds the names by number; `"sizes"`, int64 `[2, num_groups]`, the
        numbers and sizes in the order in which ties are broken.
        """
        names = np.array(list(self._ids), dtype=np.int64).reshape(-1, self._width)
        return {"groups": names, "sizes": self._by_size.state()}

    def load(self, groups: Int64Array, sizes: Int64Array) -> None:
        """Loads the entries of a saved `state`, while there are no groups."""
        self._ids = {tuple(name): number for number, name in enumerate(np.asarray(groups).tolist())}
        self._by_size.load(sizes)
        self.largest = int(np.asarray(sizes)[1].max(initial=0))


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

    def put(self, slot: int, group: int) -> None:
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


class GroupedSlots(Selection):
    """Base of selections by group; `start` of a subclass creates the groups and their slots.

    `column` is the name of the slots in the saved state.
    """

    column: ClassVar[str]
    _groups: GroupSizes
    _slots: Buckets | Queues

    def remove(self, slot: int) -> None:
        """Removes an entry; see `Selection.remove`."""
        self._size -= 1
        self._groups.change(self._slots.take(slot), -1)
        if slot != self._size:
            self._slots.rename(self._size, slot)

    def state_dict(self) -> dict[str, Any]:
        """Returns the groups and the slots of each; see `Selection.state_dict`."""
        return {**super().state_dict(), self.column: self._slots.state(), **self._groups.state()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Loads the groups and the slots of each; see `Selection.load_state_dict`."""
        super().load_state_dict(state)
        self._groups.load(state["groups"], state["sizes"])
        for slot, group in np.asarray(state[self.column]).T.tolist():
            self._slots.put(slot, group)
            self._size += 1
