"""Equal numbers of entries per class, and a uniform sample within each class."""

import numpy as np

from mixer.utils.arrays import Int64Array
from replay.selection.base import Offers, known
from replay.selection.shared.groups import Buckets, GroupedSlots, GroupSizes
from replay.shared.random_numbers import RandomNumbers, scaled


class ClassBalanced(GroupedSlots):
    """Evens out the classes, however rare some are: class-balanced reservoir sampling (CBRS).

    Chrysakis and Moens 2020, "Online Continual Learning from Imbalanced Data", algorithm 1. While there is room every
    sample is kept. Then, with `y` the class of a sample, `m_y` the entries of that class and `n_y` its samples so far:

    - `y` is not full, that is, was never among the largest classes while the buffer had no room: the sample takes the
      slot of a random entry of the largest classes.
    - `y` is full: with probability `m_y / n_y` it takes the slot of a random entry of its own class.

    Inside a class every sample is kept with about the same probability. O(1) a sample for any number of classes, and
    about 13 bytes a slot.
    """

    needs = frozenset({"label"})
    counts_rows = True
    column = "slots"
    remembered = ("_num_seen", "_was_largest")
    _slots: Buckets

    def start(self, capacity: int, key: int) -> None:
        """Begins with an empty buffer; see `Selection.start`."""
        super().start(capacity, key)
        self._random = RandomNumbers(key)
        self._groups = GroupSizes(width=1)
        self._slots = Buckets()
        self._num_seen: list[int] = []
        self._was_largest: list[bool] = []

    def choose(self, offers: Offers) -> Int64Array:
        """Gives slots to samples of rare classes first; see `Selection.choose`."""
        labels = known(offers.labels, "labels").tolist()
        words = self._random.words(offers.numbers).tolist()
        slots = [self._choose_one(label, word) for label, word in zip(labels, words, strict=True)]
        return np.array(slots, dtype=np.int64)

    def _choose_one(self, label: int, word: int) -> int:
        own = self._groups.number_of((label,))
        if own == len(self._num_seen):
            self._num_seen.append(0)
            self._was_largest.append(False)
        self._num_seen[own] += 1
        if self._size < self._capacity:
            self._put(self._size, own)
            self._size += 1
            return self._size - 1
        if self._was_largest[own] or self._groups.size(own) == self._groups.largest:
            place = scaled(word, self._num_seen[own])
            return self._slots.pick(own, place) if place < self._groups.size(own) else -1
        return self._replace_one_of_largest(own, word)

    def _replace_one_of_largest(self, own: int, word: int) -> int:
        largest = self._groups.largest
        tie, place = divmod(scaled(word, self._groups.num_largest * largest), largest)
        loser = self._groups.pick_largest(tie)
        self._was_largest[loser] = True  # others of the largest are so as long as they stay, whether noted or not
        slot = self._slots.pick(loser, place)
        self._groups.change(self._slots.take(slot), -1)
        self._put(slot, own)
        return slot

    def _put(self, slot: int, group: int) -> None:
        self._slots.put(slot, group)
        self._groups.change(group, 1)

    def remove(self, slot: int) -> None:
        """Forgets an entry; the next sample takes its room, of whatever class; see `Selection.remove`."""
        if self._size == self._capacity:
            for tie in range(self._groups.num_largest):  # others may be larger once the room is filled again
                self._was_largest[self._groups.pick_largest(tie)] = True
        super().remove(slot)
