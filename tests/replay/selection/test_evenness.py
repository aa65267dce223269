"""Reservoirs keep every sample with the same probability: tested by chi-square over many keys."""

import numpy as np
import pytest

from replay.selection import KeyedReservoir, Offers, Reservoir, Selection, merge_keyed
from replay.shared.random_numbers import RandomNumbers, scaled
from tests.replay.selection.offering import Slots

CAPACITY, TOTAL, NUM_KEYS = 4, 40, 6_000


def chi_square(kept: np.ndarray, probability: float, num_keys: int = NUM_KEYS) -> float:
    """Of the counts of each sample; about `TOTAL` if all have that probability, a little less as their sum is fixed."""
    expected = num_keys * probability
    return float(((kept - expected) ** 2 / (expected * (1 - probability))).sum())


# Mean plus five standard deviations of a chi-square of TOTAL degrees of freedom.
LIMIT = TOTAL + 5 * np.sqrt(2 * TOTAL)


def kept_by(selection: Selection, num_keys: int = NUM_KEYS) -> np.ndarray:
    counts = np.zeros(TOTAL)
    offers = [Offers(TOTAL // 2, 0), Offers(TOTAL // 2, TOTAL // 2)]
    for key in range(num_keys):
        slots = Slots(selection, CAPACITY, key)
        for part in offers:
            slots.offer(part)
        counts[slots.numbers] += 1
    return counts


@pytest.mark.parametrize("selection", [Reservoir(), KeyedReservoir()])
def test_every_sample_is_kept_with_the_same_probability(selection: Selection) -> None:
    assert chi_square(kept_by(selection), CAPACITY / TOTAL) < LIMIT


class OneTooFew(Reservoir):
    """Draws from 0 to n - 1 instead of 0 to n, as several libraries do."""

    def choose(self, offers: Offers) -> np.ndarray:
        slots = super().choose(Offers(offers.count, offers.first))
        for index, number in enumerate(offers.numbers.tolist()):
            if number >= self._capacity:
                drawn = scaled(int(self._random.words(np.array([number]))[0]), number)
                slots[index] = drawn if drawn < self._capacity else -1
        return slots


def test_a_draw_that_leaves_out_its_end_would_not_pass() -> None:
    assert chi_square(kept_by(OneTooFew()), CAPACITY / TOTAL) > LIMIT


def test_pairs_are_kept_independently_as_far_as_the_capacity_allows() -> None:
    num_keys, together = 4_000, np.zeros((TOTAL, TOTAL))
    for key in range(num_keys):
        slots = Slots(Reservoir(), CAPACITY, key)
        slots.offer(Offers(TOTAL, 0))
        together[np.ix_(slots.numbers, slots.numbers)] += 1
    pairs = together[np.triu_indices(TOTAL, 1)]
    probability = CAPACITY * (CAPACITY - 1) / (TOTAL * (TOTAL - 1))
    statistic = ((pairs - num_keys * probability) ** 2 / (num_keys * probability * (1 - probability))).sum()
    assert abs(statistic - len(pairs)) < 6 * np.sqrt(2 * len(pairs))


def test_merged_reservoirs_are_a_reservoir_of_all() -> None:
    num_keys, counts = 3_000, np.zeros(TOTAL)
    for key in range(num_keys):
        parts = [Slots(KeyedReservoir(), CAPACITY + extra, 3 * key + extra) for extra in range(3)]
        shares = (25, 10, 5)  # one has fewer samples than slots
        for part, share in zip(parts, shares, strict=True):
            part.offer(Offers(share, 0))
        kept = merge_keyed([part.selection for part in parts], CAPACITY)  # type: ignore[misc]
        assert sum(len(slots) for slots in kept) == CAPACITY
        for part, slots, start in zip(parts, kept, (0, 25, 35), strict=True):
            counts[start + np.array(part.numbers)[slots]] += 1
    assert chi_square(counts, CAPACITY / TOTAL, num_keys) < LIMIT


def test_merging_to_more_than_one_holds_is_refused() -> None:
    small, large = KeyedReservoir(), KeyedReservoir()
    small.start(3, 0)
    large.start(9, 1)
    with pytest.raises(ValueError, match="must be at most that of each reservoir, got 5 and one of 3"):
        merge_keyed([large, small], 5)
    assert [len(kept) for kept in merge_keyed([large, small], 3)] == [0, 0]


def test_a_keyed_reservoir_stays_even_after_removals() -> None:
    # A quarter of the samples is forgotten half-way; the others are kept with the same probability, early or late.
    num_keys, counts, capacity, half = 4_000, np.zeros(200), 20, 100
    for key in range(num_keys):
        slots = Slots(KeyedReservoir(), capacity, key)
        slots.offer(Offers(half, 0))
        for number in range(0, half, 4):
            if number in slots.numbers:
                slots.remove(slots.numbers.index(number))
        slots.offer(Offers(half, half))
        counts[slots.numbers] += 1
    early, late = counts[[n for n in range(half) if n % 4]].mean(), counts[half:].mean()
    assert early / late == pytest.approx(1.0, abs=0.03)
    assert counts[0:half:4].sum() == 0


def test_a_reservoir_after_removals_accepts_as_before_and_fills_up_again() -> None:
    slots, whole = Slots(Reservoir(), 10, key=3), Slots(Reservoir(), 10, key=3)
    for either in (slots, whole):
        either.offer(Offers(100, 0))
    for _ in range(4):
        slots.remove(2)
    after, undisturbed = slots.offer(Offers(400, 100)), whole.offer(Offers(400, 100))
    assert [slot >= 0 for slot in after] == [slot >= 0 for slot in undisturbed]
    assert [slot for slot in after if slot >= 0][:4] == [6, 7, 8, 9]
    assert slots.selection.size == 10


class TestRandomNumbers:
    def test_whole_numbers_are_exact_upper_halves(self) -> None:
        numbers = RandomNumbers(11)
        counters = np.arange(1_000)
        for bound in (1, 2, 3, 1_000, 2**31 - 1, 2**32 + 1, 2**62, 2**63 - 1):
            drawn = numbers.integers(counters, np.full(1_000, bound)).tolist()
            assert drawn == [scaled(word, bound) for word in numbers.words(counters).tolist()]

    def test_numbers_are_even(self) -> None:
        for table in (RandomNumbers(0), RandomNumbers(-1), RandomNumbers(0, purpose=1)):
            cells = np.bincount((table.uniforms(np.arange(100_000)) * 100).astype(int), minlength=100)
            assert ((cells - 1_000) ** 2 / 1_000).sum() < 99 + 5 * np.sqrt(198)

    def test_other_keys_and_purposes_give_other_numbers(self) -> None:
        tables = [RandomNumbers(key, purpose) for key in (0, 1, -(2**63), 2**63 - 1) for purpose in (0, 1, 2)]
        first = np.stack([table.uniforms(np.arange(2_000)) for table in tables])
        apart = np.abs(np.corrcoef(first) - np.eye(len(tables)))
        assert apart.max() < 0.12

    def test_golden_values(self) -> None:
        assert RandomNumbers(7).integers(np.arange(5), np.full(5, 10)).tolist() == [0, 9, 8, 9, 0]
