"""The newest samples of each task and class."""

from collections.abc import Sequence
from typing import Literal

import numpy as np

from mixer.utils.arrays import Int64Array
from mixer.utils.errors import InvalidValueError
from mixer.utils.ranges import check_count
from replay.selection.base import Offers, known
from replay.selection.shared.groups import GroupedSlots, GroupSizes, Queues


class Ring(GroupedSlots):
    """Keeps the newest samples of each group, first in, first out: a ring buffer a group.

    Chaudhry et al. 2019, "On Tiny Episodic Memories in Continual Learning", arXiv:1902.10486, ring buffer: `m`
    slots for each class of each task, and in each the last `m` samples. One that comes again is the newest.

    Args:
        slots_per_group: `m`. With `None` the capacity is shared evenly by the groups that came so far: a group that has
            at least two entries fewer than the largest takes its oldest one, any other replaces its own oldest. With
            more groups than slots a new group still gets one.
        by: What a group is: `"task"`, `"label"` or both.

    Raises:
        ValueError: If an argument is outside its range; while training, if the capacity is too small for the groups.
    """

    column = "queues"
    follows_repeats = True
    _slots: Queues

    def __init__(
        self, slots_per_group: int | None = None, by: Sequence[Literal["task", "label"]] = ("task", "label")
    ) -> None:
        if slots_per_group is not None:
            check_count("slots_per_group", slots_per_group, 1, "None shares the capacity by the groups")
        self.by: tuple[str, ...] = tuple(sorted({by} if isinstance(by, str) else set(by), reverse=True))
        if self.by not in (("task",), ("label",), ("task", "label")):
            raise InvalidValueError(option="by", expected="('task',), ('label',) or ('task', 'label')", found=by)
        self.slots_per_group = slots_per_group
        self.needs = frozenset(self.by)

    def start(self, capacity: int, key: int) -> None:
        """Begins with an empty buffer; see `Selection.start`."""
        super().start(capacity, key)
        self.check_room(1, f"groups by {self.by}", "slots_per_group")
        self._groups = GroupSizes(width=len(self.by))
        self._slots = Queues(capacity)

    def choose(self, offers: Offers) -> Int64Array:
        """Keeps every sample in the place of an old one; see `Selection.choose`."""
        columns = {"task": offers.tasks, "label": offers.labels}
        names = list(zip(*(known(columns[name], f"{name}s").tolist() for name in self.by), strict=True))
        self.check_room(self._groups.count_with(set(names)), f"groups by {self.by}", "slots_per_group")
        slots = np.full(offers.count, -1, dtype=np.int64)
        held = slots if offers.held is None else offers.held
        replaced: set[int] = set()  # here, from what was held
        for index, (name, slot) in enumerate(zip(names, held.tolist(), strict=True)):
            if slot >= 0 and slot not in replaced:
                self._slots.put(slot, self._slots.take(slot))
            else:
                slots[index] = new = self._choose_one(self._groups.number_of(name))
                replaced.add(new)
        return slots

    def _choose_one(self, group: int) -> int:
        loser = self._loser(group)
        if loser is None:
            slot, self._size = self._size, self._size + 1
        else:
            slot = self._slots.first(loser)
            self._slots.take(slot)
        if loser != group:
            if loser is not None:
                self._groups.change(loser, -1)
            self._groups.change(group, 1)
        self._slots.put(slot, group)
        return slot

    def _loser(self, group: int) -> int | None:
        # The group that loses its oldest entry, if any does.
        own = self._groups.size(group)
        if self.slots_per_group is not None:
            return group if own == self.slots_per_group else None
        if self._size < self._capacity:
            return None
        if own and own >= self._groups.largest - 1:
            return group
        return self._groups.pick_largest(0)
