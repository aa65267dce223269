import numpy as np
import pytest

from replay.selection import KeyedReservoir, Offers, Reservoir, merge_keyed
from replay.shared.random_numbers import RandomNumbers, scaled
from tests.replay.selection.offering import Slots, chi_square_is_fine

CAPACITY, TOTAL, NUM_KEYS = 4, 40, 2_500


@pytest.mark.parametrize("capacity", [1, 3, 50, 400])
def test_choices_are_those_of_the_textbooks(capacity: int) -> None:
    """Algorithm R for one, and the largest random numbers for the other."""
    words = RandomNumbers(9).words(np.arange(300)).tolist()
    expected = [number if number < capacity else scaled(words[number], number + 1) for number in range(300)]
    slots = Slots(Reservoir(), capacity, key=9)
    assert slots.offer(Offers(300, 0)) == [slot if slot < capacity else -1 for slot in expected]
    keys, selection = RandomNumbers(9).uniforms(np.arange(300)), KeyedReservoir()
    slots = Slots(selection, capacity, key=9)
    slots.offer(Offers(300, 0))
    assert set(slots.numbers) == set(np.argsort(-keys)[:capacity].tolist())
    np.testing.assert_array_equal(selection.keys, keys[slots.numbers])


def test_merged_reservoirs_are_a_reservoir_of_all() -> None:
    num_keys, counts = 1_500, np.zeros(TOTAL)
    for key in range(num_keys):
        parts = [Slots(KeyedReservoir(), CAPACITY + extra, 3 * key + extra) for extra in range(3)]
        for part, share in zip(parts, (25, 10, 5), strict=True):  # one has fewer samples than slots
            part.offer(Offers(share, 0))
        kept = merge_keyed([part.selection for part in parts], CAPACITY)  # type: ignore[misc]
        assert sum(len(slots) for slots in kept) == CAPACITY
        for part, slots, start in zip(parts, kept, (0, 25, 35), strict=True):
            counts[start + np.array(part.numbers)[slots]] += 1
    assert chi_square_is_fine(counts, num_keys * CAPACITY / TOTAL, CAPACITY / TOTAL)
    with pytest.raises(ValueError, match="must be at most that of each reservoir, got 5 and one of 4"):
        merge_keyed([part.selection for part in parts], 5)  # type: ignore[misc]


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
