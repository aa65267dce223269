from collections import Counter, defaultdict, deque
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from replay.selection import ClassBalanced, Herding, Learnable, LossAware, Offers, Reservoir, Ring
from replay.shared.random_numbers import RandomNumbers, scaled
from tests.refusals import refused
from tests.replay.selection.offering import Slots, chi_square_is_fine, offers_of

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


@given(names=names, capacity=st.integers(1, 20), slot_draws=st.lists(st.integers(0, 100), max_size=20))
def test_sharing_groups_hold_their_newest(names: list[tuple[int, int]], capacity: int, slot_draws: list[int]) -> None:
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
    with refused("capacity", expected="12 or more for 3 groups by ('task',) with slots_per_group=4", found=11):
        offer(slots, [(1, 0), (2, 0)])
    assert slots.selection.size == 2
    with refused("capacity", found=11):
        Ring(20).start(11, 0)


@pytest.mark.parametrize("by", [(), ("class",), "domain", ("task", "task", "x")])
def test_groups_by_anything_else_are_refused(by: Any) -> None:
    with refused("by", found=by):
        Ring(by=by)


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


NAN, INF = float("nan"), float("inf")


def offer_values(slots: Slots, values: list[float], first: int = 0) -> list[int]:
    numbers = np.array(values, dtype=np.float64)
    return slots.offer(Offers(len(values), first, losses=numbers))


@pytest.mark.parametrize(
    ("losses", "refreshed", "now"),
    [
        ([0.0, 0.5, 1.0, 2.0, 1.0], {}, [0.0, 0.5, 1.0, 2.0, 1.0]),
        ([0.0, 0.0, 1.0], {0: 2.0, 2: 0.5}, [2.0, 0.0, 0.5]),
        ([NAN, -7.0, 0.0, INF, 1e6], {}, [0.0, 0.0, 0.0, INF, INF]),  # cut to the range, and NaN leaves first
    ],
)
def test_the_likely_make_room(losses: list[float], refreshed: dict[int, float], now: list[float]) -> None:
    counts, weights = np.zeros(len(losses)), np.exp(-np.array(now))
    for key in range(1_500):
        selection = LossAware()
        slots = Slots(selection, len(losses), key)
        offer_values(slots, losses)
        selection.update_losses(list(refreshed), list(refreshed.values()))
        taken = offer_values(slots, [1.0], first=len(losses))[0]
        if taken >= 0:
            counts[taken] += 1
    there = weights > 0
    assert not counts[~there].any()
    assert chi_square_is_fine(counts[there], counts.sum() * weights[there] / weights.sum())


def test_samples_are_accepted_as_a_reservoir_accepts_them() -> None:
    slots, reservoir = Slots(LossAware(), 10, key=4), Slots(Reservoir(), 10, key=4)
    taken, plain = offer_values(slots, [1.0] * 300), offer_values(reservoir, [1.0] * 300)
    assert [slot >= 0 for slot in taken] == [slot >= 0 for slot in plain]


def test_whole_numbers_are_exact_upper_halves() -> None:
    numbers, counters = RandomNumbers(11), np.arange(1_000)
    for bound in (1, 2, 3, 1_000, 2**31 - 1, 2**32 + 1, 2**62, 2**63 - 1):
        drawn = numbers.integers(counters, np.full(1_000, bound)).tolist()
        assert drawn == [scaled(word, bound) for word in numbers.words(counters).tolist()]
    assert RandomNumbers(7).integers(np.arange(5), np.full(5, 10)).tolist() == [0, 9, 8, 9, 0]


def test_numbers_are_even_and_others_for_other_keys_and_purposes() -> None:
    tables = [RandomNumbers(key, purpose) for key in (0, 1, -(2**63), 2**63 - 1) for purpose in (0, 1, 2)]
    first = np.stack([table.uniforms(np.arange(50_000)) for table in tables])
    assert all(chi_square_is_fine(np.bincount((row * 100).astype(int), minlength=100), 500) for row in first)
    assert np.abs(np.corrcoef(first) - np.eye(len(tables))).max() < 0.03


seeds = st.integers(0, 10**6)


def task_of(sizes: dict[int, int], first: int = 0, seed: int = 0) -> Offers:
    random = np.random.default_rng([seed, first])
    labels = random.permutation([label for label, size in sizes.items() for _ in range(size)])
    return Offers(len(labels), first, labels=labels, features=random.normal(size=(len(labels), 3)).astype(np.float32))


def distance_to_mean(features: np.ndarray, chosen: list[int]) -> float:
    """What the paper's algorithm 4 makes as small as it can at each step."""
    directions = features / np.linalg.norm(features, axis=1, keepdims=True)
    return float(np.linalg.norm(directions.mean(axis=0) - directions[chosen].sum(axis=0) / len(chosen)))


@given(seed=seeds, num_samples=st.integers(1, 12), data=st.data())
def test_herding_is_the_greedy_choice_of_the_paper(seed: int, num_samples: int, data: st.DataObject) -> None:
    count = data.draw(st.integers(1, num_samples))
    features = np.random.default_rng(seed).normal(size=(num_samples, 4)) * 3 + 1
    chosen = Herding().rank(features, count).tolist()
    for step in range(count):
        before, others = chosen[:step], set(range(num_samples)) - set(chosen[:step])
        best = min(distance_to_mean(features, [*before, other]) for other in others)
        assert chosen[step] in others
        assert distance_to_mean(features, chosen[: step + 1]) <= best + 1e-12


@settings(max_examples=30)
@given(seed=seeds, sizes=st.lists(st.integers(0, 5), min_size=1, max_size=6), capacity=st.integers(1, 15))
def test_a_shared_capacity_is_even_by_rank(seed: int, sizes: list[int], capacity: int) -> None:
    slots, ranked, first = Slots(Herding(), capacity), [], 0
    for label, size in enumerate(sizes):  # a task a class
        offers = task_of({label: size}, first, seed)
        slots.offer(offers)
        if size:
            ranked.append((Herding().rank(np.float64(offers.features), size) + first).tolist())
        first += size
        kept = [len(set(own) & set(slots.numbers)) for own in ranked]
        assert sum(kept) == min(capacity, sum(sizes[: label + 1]))  # no slot is free that could be used
        for own, count in zip(ranked, kept, strict=True):
            assert set(own[:count]) <= set(slots.numbers)
            assert count == len(own) or count >= max(kept) - 1 or capacity < len(ranked)


def test_a_class_has_its_slots() -> None:
    slots = Slots(Herding(3), 12)
    assert sum(slot >= 0 for slot in slots.offer(task_of({0: 9, 1: 2}))) == 5
    assert sum(slot >= 0 for slot in slots.offer(task_of({2: 9, 0: 4}, first=11))) == 6  # again, and counted anew
    with refused("capacity", expected="15 or more for 5 classes with per_class=3", found=12):
        slots.offer(task_of({5: 1}, first=24))
    assert slots.selection.size == 11


def test_removed_entries_make_room_and_ranks_close_up() -> None:
    selection = Herding()
    slots, offers = Slots(selection, 8), task_of({0: 8})
    slots.offer(offers)
    order = selection.rank(np.asarray(offers.features, dtype=np.float64), 8).tolist()
    for number in order[:2]:
        slots.remove(slots.numbers.index(number))
    slots.offer(task_of({1: 8}, first=8))
    assert sorted(number for number in slots.numbers if number < 8) == sorted(order[2:6])


def test_wrong_values_are_refused() -> None:
    with refused("Offers.features"):
        Slots(Herding(), 3).offer(Offers(1, 0, labels=np.zeros(1, np.int64), features=np.array([[np.nan]])))
    with refused("capacity", found=3):
        Herding(4).start(3, 0)


def test_what_was_solved_meanwhile_goes_first_and_nothing_worse_comes_in() -> None:
    """Spreads 1.3, 2.8, 2.0 fill it; replays find 2.8 to be 0; 0.9 replaces that, and 0.6 nothing."""
    slots = Slots(Learnable(), 3)
    assert slots.offer(offers_of([0, 1, 2])) == [0, 1, 2]
    slots.selection.update_losses([1], [0.0])
    assert slots.offer(offers_of([11])) == [1]
    assert slots.offer(offers_of([13])) == [-1]


def test_of_equal_ones_the_first_measured_goes() -> None:
    slots = Slots(Learnable(), 3)
    slots.offer(offers_of([0, 1, 2]))
    slots.selection.update_losses([2, 0, 1], [1.0, 1.0, 1.0])
    assert slots.offer(offers_of([3, 5])) == [2, 0]
