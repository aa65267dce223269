"""Known choices: what a key decides never changes, or runs could not be repeated."""

import numpy as np
import pytest

from replay.selection import KeyedReservoir, Offers, Reservoir
from replay.shared.random_numbers import RandomNumbers, scaled
from tests.replay.selection.offering import BY_TASK, MAKERS, Slots, offers_of

CHOICES = {
    "Reservoir": [0, 1, 2, 3, 4, 1, -1, 0, -1, -1, 4, -1, -1, 1, -1, -1],
    "KeyedReservoir": [0, 1, 2, 3, 4, 3, 2, -1, 3, 4, -1, 0, 0, -1, -1, -1],
    "Ring": [0, 1, 2, 3, 4, 1, 2, 1, 3, 0, 2, 0, 1, 0, 0, 0],
    "Ring by label": [0, 1, 2, 3, 4, 1, 2, 1, 3, 0, 2, 0, 1, 0, 0, 0],
    "Ring by task": [0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 0],
    "ClassBalanced": [0, 1, 2, 3, 4, 1, -1, 2, 1, 3, -1, 3, -1, 0, -1, -1],
    "Surprise": [0, 1, 2, 3, 4, 4, -1, 0, 2, 4, -1, -1, 1, -1, -1, -1],
    "LossAware": [0, 1, 2, 3, 4, 2, -1, 0, -1, -1, 4, -1, -1, 4, -1, -1],
    "GradientDiversity": [0, 1, 2, 3, 4, -1, -1, -1, 2, 1, 4, -1, 4, -1, -1, -1],
    "Herding": [0, -1, 1, -1, 2, -1, -1, -1, 3, -1, -1, -1, -1, -1, 4, -1],
    "KCenter": [-1, -1, -1, 0, -1, 1, -1, -1, 2, 3, -1, -1, -1, -1, 4, -1],
}


@pytest.mark.parametrize("name", CHOICES)
def test_golden_values(name: str) -> None:
    slots = Slots({**MAKERS, **BY_TASK}[name](), 5, key=2)
    assert slots.offer(offers_of(range(16))) == CHOICES[name]


@pytest.mark.parametrize("capacity", [1, 3, 50])
def test_a_reservoir_is_algorithm_r(capacity: int) -> None:
    words = RandomNumbers(9).words(np.arange(300)).tolist()
    expected = [number if number < capacity else scaled(words[number], number + 1) for number in range(300)]
    slots = Slots(Reservoir(), capacity, key=9)
    assert slots.offer(Offers(300, 0)) == [slot if slot < capacity else -1 for slot in expected]


@pytest.mark.parametrize("capacity", [1, 3, 50, 400])
def test_a_keyed_reservoir_holds_the_largest_random_numbers(capacity: int) -> None:
    keys = RandomNumbers(9).uniforms(np.arange(300))
    selection = KeyedReservoir()
    slots = Slots(selection, capacity, key=9)
    slots.offer(Offers(300, 0))
    assert set(slots.numbers) == set(np.argsort(-keys)[:capacity].tolist())
    np.testing.assert_array_equal(selection.keys, keys[slots.numbers])
