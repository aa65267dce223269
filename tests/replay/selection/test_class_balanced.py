"""A buffer of balanced classes, against algorithm 1 of its paper."""

from collections import Counter
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from replay.selection import ClassBalanced, Offers
from tests.replay.selection.offering import Slots, chi_square_is_fine


class Plain:
    """Algorithm 1 of the paper with lists that are searched; it is told the choices and says whether they are right."""

    def __init__(self, capacity: int):
        self.capacity, self.labels = capacity, list[int]()
        self.num_seen: Counter[int] = Counter()
        self.full: set[int] = set()

    def largest(self) -> set[int]:
        sizes = Counter(self.labels)
        return {label for label in sizes if sizes[label] == max(sizes.values())}

    def check(self, label: int, slot: int) -> None:
        self.num_seen[label] += 1
        if len(self.labels) < self.capacity:
            assert slot == len(self.labels)
            self.labels.append(label)
        elif label in self.full:
            assert slot == -1 or self.labels[slot] == label
            assert slot >= 0 or Counter(self.labels)[label] < self.num_seen[label]
        else:
            assert self.labels[slot] in self.largest() - {label}
            self.labels[slot] = label
        if len(self.labels) == self.capacity:
            self.full |= self.largest()

    def remove(self, slot: int) -> None:
        last = self.labels.pop()
        if slot < len(self.labels):
            self.labels[slot] = last


def labelled(labels: list[int], first: int = 0) -> Offers:
    return Offers(len(labels), first, labels=np.array(labels, dtype=np.int64))


@settings(max_examples=100)
@given(
    steps=st.lists(st.one_of(st.lists(st.integers(-3, 3), max_size=30), st.integers(0, 100)), max_size=10),
    capacity=st.integers(1, 12),
    key=st.integers(-(2**63), 2**63 - 1),
)
def test_every_choice_is_one_that_the_algorithm_allows(steps: list[Any], capacity: int, key: int) -> None:
    slots, plain, offered = Slots(ClassBalanced(), capacity, key), Plain(capacity), 0
    for step in steps:
        if isinstance(step, list):
            for label, slot in zip(step, slots.offer(labelled(step, offered)), strict=True):
                plain.check(label, slot)
            offered += len(step)
        elif slots.numbers:
            slots.remove(step % len(slots.numbers))
            plain.remove(step % len(plain.labels))
        assert len(plain.labels) == slots.selection.size


def test_rare_classes_are_kept_whole_and_the_others_are_even() -> None:
    labels = np.random.default_rng(0).choice(5, size=5_000, p=[0.7, 0.2, 0.09, 0.007, 0.003]).tolist()
    slots = Slots(ClassBalanced(), 200)
    slots.offer(labelled(labels))
    sizes, came = Counter(labels[number] for number in slots.numbers), Counter(labels)
    assert all(sizes[label] == came[label] for label in (3, 4))
    assert max(sizes[label] for label in (0, 1, 2)) - min(sizes[label] for label in (0, 1, 2)) <= 1


def test_any_of_the_tied_largest_loses_with_the_same_probability() -> None:
    counts = np.zeros(6)
    for key in range(1_800):
        slots = Slots(ClassBalanced(), 6, key)
        counts[slots.offer(labelled([0, 1, 2, 0, 1, 2, 9]))[-1]] += 1
    assert chi_square_is_fine(counts, 300)
