"""Bags of integers, such as the slots of each class: insertion, removal and random access in O(1)."""

from array import array

import numpy as np

from mixer.utils.arrays import Int64Array


class Bags:
    """Numbers from 0 on, each in one bag at most; every operation takes the same time however many there are.

    The last of a bag fills the gap that another leaves. About 13 bytes a number.
    """

    def __init__(self) -> None:
        self._members: dict[int, array[int]] = {}
        self._bag_of, self._places = array("i"), array("i")

    def __contains__(self, bag: int) -> bool:
        """Whether anything is in a bag."""
        return bag in self._members

    def count(self, bag: int) -> int:
        """Says how many numbers are in a bag."""
        return len(self._members[bag]) if bag in self._members else 0

    def bag_of(self, number: int) -> int:
        """Says in which bag a number is."""
        return self._bag_of[number]

    def pick(self, bag: int, place: int) -> int:
        """Gives a number of a bag.

        Args:
            bag: The bag.
            place: 0 to `count(bag) - 1`.

        Returns:
            The number.
        """
        return self._members[bag][place]

    def put(self, number: int, bag: int) -> None:
        """Puts a number that is in no bag into one.

        Args:
            number: The number.
            bag: The bag.
        """
        if number >= len(self._bag_of):
            missing = array("i", bytes(4 * (number + 1 - len(self._bag_of))))
            self._bag_of.extend(missing)
            self._places.extend(missing)
        members = self._members.get(bag)
        if members is None:
            members = self._members[bag] = array("i")
        self._bag_of[number], self._places[number] = bag, len(members)
        members.append(number)

    def take(self, number: int) -> int:
        """Takes a number out of its bag.

        Args:
            number: The number.

        Returns:
            The bag in which it was.
        """
        bag = self._bag_of[number]
        members = self._members[bag]
        last = members.pop()
        if last != number:
            members[self._places[number]] = last
            self._places[last] = self._places[number]
        if not members:
            del self._members[bag]
        return bag

    def state(self) -> Int64Array:
        """Gives all that is in bags.

        Returns:
            int64 `[2, count]`: numbers, and their bags, each bag's in its order.
        """
        bags = sorted(self._members)
        numbers = np.concatenate([np.zeros(0, np.int64), *(self._members[bag] for bag in bags)])
        return np.stack([numbers, np.repeat(np.array(bags, dtype=np.int64), [self.count(bag) for bag in bags])])

    def load(self, state: Int64Array) -> None:
        """Fills the bags, which are empty.

        Args:
            state: What `state` gave; bags are 0 or more.
        """
        numbers, bags = np.asarray(state, dtype=np.int64)
        starts = np.flatnonzero(np.diff(bags, prepend=-1))
        places = np.arange(len(bags)) - np.repeat(starts, np.diff(starts, append=len(bags)))
        table = np.zeros((2, numbers.max(initial=-1) + 1), dtype=np.int32)
        table[:, numbers] = bags, places
        self._bag_of, self._places = array("i", table[0].tobytes()), array("i", table[1].tobytes())
        own = np.split(numbers.astype(np.int32), starts[1:]) if len(starts) else []
        self._members = {int(bags[start]): array("i", part.tobytes()) for start, part in zip(starts, own, strict=True)}
