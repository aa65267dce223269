"""Rings: the newest of each group, or as many of each as there is room."""

from collections import defaultdict, deque
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from replay.selection import Offers, Ring
from tests.replay.selection.offering import Slots

names = st.lists(st.tuples(st.integers(0, 2), st.integers(-1, 1)), max_size=80)


def offer(slots: Slots, names: list[tuple[int, int]], first: int = 0) -> list[int]:
    table = np.array(names, dtype=np.int64).reshape(-1, 2)
    return slots.offer(Offers(len(names), first, tasks=table[:, 0], labels=table[:, 1]))


@given(names=names, slots_per_group=st.integers(1, 4))
def test_each_group_holds_its_newest(names: list[tuple[int, int]], slots_per_group: int) -> None:
    slots = Slots(Ring(slots_per_group), 9 * slots_per_group)
    offer(slots, names)
    newest: dict[tuple[int, int], deque[int]] = defaultdict(lambda: deque(maxlen=slots_per_group))
    for number, name in enumerate(names):
        newest[name].append(number)
    assert sorted(slots.numbers) == sorted(number for group in newest.values() for number in group)


def test_slots_are_used_in_turns() -> None:
    slots = Slots(Ring(2, by="label"), 4)
    assert offer(slots, [(0, 5), (1, 5), (0, 7), (0, 5), (0, 5), (0, 7), (0, 7), (0, 5)]) == [0, 1, 2, 0, 1, 3, 2, 0]


@given(names=names, capacity=st.integers(1, 20), slot_draws=st.lists(st.integers(0, 100), max_size=20))
def test_groups_of_a_shared_capacity_hold_their_newest(
    names: list[tuple[int, int]], capacity: int, slot_draws: list[int]
) -> None:
    slots = Slots(Ring(), capacity)
    offer(slots, names)
    for draw in slot_draws[: len(slots.numbers)]:
        slots.remove(draw % len(slots.numbers))
    offer(slots, names, first=len(names))
    groups: dict[tuple[int, int], list[int]] = defaultdict(list)
    for number in slots.numbers:
        groups[names[number % len(names)]].append(number)
    for name, own in groups.items():
        fresh = [number for number in range(len(names), 2 * len(names)) if names[number % len(names)] == name]
        kept = sorted(number for number in own if number >= len(names))
        assert kept == fresh[len(fresh) - len(kept) :]  # the newest, none left out
    assert len(slots.numbers) >= min(capacity, len(names))


def test_a_shared_capacity_is_shared_out_anew_as_groups_come() -> None:
    slots = Slots(Ring(by="task"), 12)
    for task, size in enumerate((12, 6, 4, 3)):
        offer(slots, [(task, 0)] * 40, 40 * task)
        newest = [range(40 * (group + 1) - size, 40 * (group + 1)) for group in range(task + 1)]
        assert sorted(slots.numbers) == [number for own in newest for number in own]


def test_a_capacity_that_does_not_suffice_is_refused_before_anything_is_placed() -> None:
    slots = Slots(Ring(4, by="task"), 11)
    offer(slots, [(0, 0), (1, 0)])
    with pytest.raises(ValueError, match=r"capacity must be 12 or more for 3 groups by \('task',\).*4, got 11"):
        offer(slots, [(1, 0), (2, 0)])
    assert slots.selection.size == 2
    with pytest.raises(ValueError, match="capacity must be 20 or more for 1 groups"):
        Ring(20).start(11, 0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        *(({"by": by}, "by must be") for by in ((), ("class",), "domain", ("task", "task", "x"))),
        *(({"slots_per_group": n}, r"slots_per_group must be a whole number.*None shares") for n in (0, -1, 1.5)),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Ring(**options)


def test_what_is_needed_depends_on_the_groups() -> None:
    assert Ring().needs == {"task", "label"}
    assert Ring(by=("label",)).needs == {"label"}
