import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from replay.selection import Offers, Surprise
from replay.selection.shared.slot_trees import MinimumTree, SumTree
from tests.replay.selection.offering import Slots

NAN, INF = float("nan"), float("inf")


def offer(slots: Slots, losses: list[float], first: int = 0) -> list[int]:
    return slots.offer(Offers(len(losses), first, losses=np.array(losses, dtype=np.float64)))


@given(losses=st.lists(st.floats(-5, 5, width=16), max_size=60), capacity=st.integers(1, 12))
def test_the_highest_losses_are_kept_and_of_equal_ones_the_first(losses: list[float], capacity: int) -> None:
    slots = Slots(Surprise(), capacity)
    offer(slots, losses)
    kept = sorted((losses[number] for number in slots.numbers), reverse=True)
    assert kept == sorted(losses, reverse=True)[:capacity]
    least = min(kept, default=0.0)
    assert {number for number in range(len(losses)) if losses[number] > least} <= set(slots.numbers)
    if len(losses) <= capacity:
        assert slots.numbers == list(range(len(losses)))


def test_equal_losses_do_not_push_each_other_out() -> None:
    slots = Slots(Surprise(), 2)
    assert offer(slots, [1.0, 1.0, 1.0, 2.0, 1.0]) == [0, 1, -1, 0, -1]


def test_losses_that_are_not_finite_stay_only_while_there_is_room() -> None:
    slots = Slots(Surprise(), 3)
    assert offer(slots, [NAN, INF, 0.0, NAN, -9.0, -8.0, INF, NAN]) == [0, 1, 2, -1, 1, 0, -1, -1]


def test_a_free_slot_is_taken_by_the_next_sample() -> None:
    slots = Slots(Surprise(), 3)
    offer(slots, [5.0, 6.0, 7.0])
    slots.remove(0)
    assert slots.numbers == [2, 1]
    assert offer(slots, [1.0, 2.0, 0.5], first=3) == [2, 2, -1]


values = st.lists(st.tuples(st.integers(0, 12), st.floats(0, 100, width=32)), max_size=40)


class TestSlotTrees:
    @given(num_slots=st.integers(1, 13), changes=values)
    def test_the_least_value(self, num_slots: int, changes: list[tuple[int, float]]) -> None:
        tree, plain = MinimumTree(num_slots), np.full(num_slots, np.inf)
        for slot, value in changes:
            plain[slot % num_slots] = value
            tree.set(slot % num_slots, value)
            assert tree.least == plain.min() == plain[tree.least_slot()] == tree.get(tree.least_slot())

    @given(num_slots=st.integers(1, 13), changes=values)
    def test_slots_are_found_in_proportion_to_their_weights(
        self, num_slots: int, changes: list[tuple[int, float]]
    ) -> None:
        tree, plain = SumTree(num_slots), np.zeros(num_slots)
        for slot, value in changes:
            plain[slot % num_slots] = value
            tree.set(slot % num_slots, value)
        if plain.sum() > 0:
            found = [tree.find((place + 0.5) / 2_000) for place in range(2_000)]
            shares = np.bincount(found, minlength=num_slots) / 2_000
            np.testing.assert_allclose(shares, plain / plain.sum(), atol=0.002)

    @given(num_slots=st.integers(1, 13), changes=values)
    def test_a_loaded_tree_is_the_same_to_the_bit(self, num_slots: int, changes: list[tuple[int, float]]) -> None:
        for kind in (MinimumTree, SumTree):
            tree, loaded = kind(num_slots), kind(num_slots)
            for slot, value in changes:
                tree.set(slot % num_slots, value)
            loaded.load(tree.values(num_slots))
            np.testing.assert_array_equal(loaded._array[1:], tree._array[1:])
