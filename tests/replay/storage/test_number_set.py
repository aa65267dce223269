"""Sets of row numbers do what Python's do, in little memory."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replay.storage.segments import NumberSet

NUMBERS = st.one_of(
    st.sets(st.integers(0, 40)),
    st.sets(st.integers(0, 2_000), max_size=30),
    st.sets(st.integers(2**33, 2**33 + 10**6), max_size=30),
    st.sets(st.integers(0, 2**50), max_size=10),
    st.builds(lambda start, count: set(range(start, start + count)), st.integers(0, 9), st.integers(0, 300)),
)


def ascending(numbers: set[int]) -> np.ndarray:
    return np.array(sorted(numbers), dtype=np.int64)


@settings(max_examples=200)
@given(NUMBERS, st.lists(st.tuples(NUMBERS, st.randoms(use_true_random=False)), max_size=4))
def test_it_is_a_set(model, removals):
    numbers = NumberSet(ascending(model))
    for others, random in [(set(), None), *removals]:
        gone = others | (set(random.sample(sorted(model), len(model) // 2)) if random else set())
        numbers.remove(ascending(gone))
        model = model - gone
        assert len(numbers) == len(model)
        assert bool(numbers) == bool(model)
        assert numbers.numbers().dtype == np.int64
        assert numbers.numbers().tolist() == sorted(model)
        near = {number + step for number in model | gone for step in (-1, 0, 1)} | {0, -1, -8, 2**51}
        assert all((number in numbers) == (number in model) for number in near)


@pytest.mark.parametrize(("step", "most"), [(1, 1), (2, 2), (7, 7), (30, 30), (1_000, 32), (10**6, 64)])
def test_it_takes_few_bits_a_number(step, most):
    numbers = NumberSet(5 + step * np.arange(16_384, dtype=np.int64))
    assert numbers.num_bytes <= most * 16_384 / 8
    numbers.remove(5 + step * np.arange(0, 16_384, 2))
    assert numbers.num_bytes <= most * 16_384 / 8
    assert len(numbers) == 8_192


def test_a_reservoir_takes_less_than_a_byte_a_row():
    """What is left of the rows that a reservoir of 10,000 takes in of 10 million samples."""
    generator, capacity = np.random.default_rng(0), 10_000
    slots, row, seen = np.arange(capacity), capacity, float(capacity)
    while seen < 10**7:
        seen += generator.exponential(seen / capacity)
        slots[generator.integers(capacity)] = row
        row += 1
    live = np.sort(slots)
    sets = [NumberSet(live[start : start + 1_000]) for start in range(0, capacity, 1_000)]
    assert sum(numbers.num_bytes for numbers in sets) < capacity
