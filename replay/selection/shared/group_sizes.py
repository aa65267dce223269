"""Groups of samples, such as classes, with their sizes and the largest ones."""

import numpy as np

from mixer.utils.arrays import Int64Array
from replay.selection.shared.bags import Bags

Group = tuple[int, ...]


class GroupSizes:
    """Numbers groups as they come, and knows how many entries each has; O(1) for any number of groups.

    Args:
        width: Length of a group's name: a name is as many whole numbers.
    """

    def __init__(self, width: int):
        self._width = width
        self._ids: dict[Group, int] = {}
        self._sizes: list[int] = []
        self._by_size = Bags()
        self._largest = 0

    def __len__(self) -> int:
        """Number of groups that came."""
        return len(self._ids)

    @property
    def largest(self) -> int:
        """Size of the largest groups."""
        return self._largest

    @property
    def num_largest(self) -> int:
        """Number of groups of that size."""
        return self._by_size.count(self._largest)

    def pick_largest(self, place: int) -> int:
        """Gives one of the largest groups.

        Args:
            place: 0 to `num_largest - 1`.

        Returns:
            Number of the group.
        """
        return self._by_size.pick(self._largest, place)

    def size(self, group: int) -> int:
        """Says how many entries a group has."""
        return self._sizes[group]

    def number_of(self, name: Group) -> int:
        """Gives the number of a group, a new one if it never came.

        Args:
            name: Name of the group.

        Returns:
            Its number, from 0 in the order in which groups came.
        """
        number = self._ids.get(name)
        if number is None:
            number = self._ids[name] = len(self._ids)
            self._sizes.append(0)
            self._by_size.put(number, 0)
        return number

    def num_unknown(self, names: set[Group]) -> int:
        """Counts the groups that never came.

        Args:
            names: Names of groups.

        Returns:
            How many of them are new.
        """
        return sum(name not in self._ids for name in names)

    def change(self, group: int, by: int) -> None:
        """Changes the size of a group by one.

        Args:
            group: Number of the group.
            by: 1 or -1.
        """
        size = self._sizes[group] = self._sizes[group] + by
        self._by_size.take(group)
        self._by_size.put(group, size)
        if size > self._largest:
            self._largest = size
        elif self._largest not in self._by_size:
            self._largest -= 1  # where the group is now

    def state(self) -> dict[str, Int64Array]:
        """Gives all that is remembered.

        Returns:
            `"groups"`, int64 `[num_groups, width]`: names by number; `"sizes"`, int64 `[2, num_groups]`: numbers of the
            groups and their sizes, in the order in which ties are broken.
        """
        names = np.array(list(self._ids), dtype=np.int64).reshape(-1, self._width)
        return {"groups": names, "sizes": self._by_size.state()}

    def load(self, groups: Int64Array, sizes: Int64Array) -> None:
        """Takes up a saved state, while there are no groups.

        Args:
            groups: Entry `"groups"` of `state`.
            sizes: Entry `"sizes"` of `state`.
        """
        self._ids = {tuple(name): number for number, name in enumerate(np.asarray(groups).tolist())}
        by_number = dict(np.asarray(sizes).T.tolist())
        self._sizes = [by_number[number] for number in range(len(self._ids))]
        self._by_size.load(sizes)
        self._largest = max(self._sizes, default=0)
