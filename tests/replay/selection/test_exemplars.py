import numpy as np
from hypothesis import given, settings, strategies as st

from replay.selection import Herding, Learnable, Offers
from tests.refusals import refused
from tests.replay.selection.offering import Slots, offers_of

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
