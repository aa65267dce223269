"""What every selection promises, and known choices: what a key decides never changes, or runs could not be repeated."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from mixer.utils.errors import InvalidValueError
from replay import ReplayBuffer
from replay.selection import LossAware, Offers, Reservoir, as_selection
from replay.selection.base import COLUMNS
from tests.refusals import refused
from tests.replay.selection.offering import BY_TASK, MAKERS, Slots, offers_of

ALL = {**MAKERS, **BY_TASK}
every_selection = pytest.mark.parametrize("name", ALL)
TOTAL = 200
CHOICES = {
    "Reservoir": [0, 1, 2, 3, 4, 1, -1, 0, -1, -1, 4, -1, -1, 1, -1, -1],
    "Ring": [0, 1, 2, 3, 4, 1, 2, 1, 3, 0, 2, 0, 1, 0, 0, 0],
    "Ring by label": [0, 1, 2, 3, 4, 1, 2, 1, 3, 0, 2, 0, 1, 0, 0, 0],
    "Ring by task": [0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 0],
    "ClassBalanced": [0, 1, 2, 3, 4, 1, -1, 2, 1, 3, -1, 3, -1, 0, -1, -1],
    "LossAware": [0, 1, 2, 3, 4, 2, -1, 0, -1, -1, 4, -1, -1, 4, -1, -1],
    "Learnable": [0, 1, 2, 3, 4, 4, -1, 0, 2, 4, -1, -1, 1, -1, -1, -1],
    "Herding": [0, -1, 1, -1, 2, -1, -1, -1, 3, -1, -1, -1, -1, -1, 4, -1],
}


def same(left: dict[str, Any], right: dict[str, Any]) -> bool:
    pairs = [(np.asarray(left[entry]), np.asarray(right[entry])) for entry in left]
    return left.keys() == right.keys() and all(np.array_equal(a, b) and a.dtype == b.dtype for a, b in pairs)


@every_selection
def test_golden_values_also_after_another_start(name: str) -> None:
    slots = Slots(ALL[name](), 5, key=2)
    assert slots.offer(offers_of(range(16))) == CHOICES[name]
    assert Slots(slots.selection, 5, key=2).offer(offers_of(range(16))) == CHOICES[name]


@pytest.mark.parametrize("name", MAKERS)
@settings(max_examples=25)
@given(cuts=st.lists(st.integers(0, TOTAL), max_size=20), capacity=st.integers(1, 40))
def test_the_split_into_calls_does_not_matter(name: str, cuts: list[int], capacity: int) -> None:
    whole, parts = Slots(ALL[name](), capacity), Slots(ALL[name](), capacity)
    together = whole.offer(offers_of(range(TOTAL)))
    ends = [0, *sorted(cuts), TOTAL]
    assert together == [slot for part in pairwise(ends) for slot in parts.offer(offers_of(range(*part)))]


@every_selection
@settings(max_examples=25)
@given(cut=st.integers(0, TOTAL), removals=st.lists(st.integers(0, 10**6), max_size=5), capacity=st.integers(1, 40))
def test_a_saved_state_goes_on_as_if_nothing_had_been(name: str, cut: int, removals: list[int], capacity: int) -> None:
    going = Slots(ALL[name](), capacity)
    going.offer(offers_of(range(cut)))
    for removal in removals:
        if going.numbers:
            going.remove(removal % len(going.numbers))
    resumed = ALL[name]()
    resumed.start(capacity, key=5)
    resumed.load_state_dict(going.selection.state_dict())
    assert resumed.size == going.selection.size
    for start, stop in [(0, TOTAL), (TOTAL, 2 * TOTAL)][cut == 0 :]:
        offers = offers_of(range(cut + start, cut + stop))
        assert going.offer(offers) == resumed.choose(offers).tolist()
        if going.numbers:
            going.remove(0)
            resumed.remove(0)
    assert same(going.selection.state_dict(), resumed.state_dict())


@every_selection
def test_what_is_saved_is_plain_and_not_changed_later(name: str) -> None:
    slots = Slots(ALL[name](), 20)
    slots.offer(offers_of(range(100)))
    state = slots.selection.state_dict()
    assert all(type(value) in (str, int, float, bool, type(None), list, np.ndarray) for value in state.values())
    copies = {entry: np.array(value) for entry, value in state.items()}
    slots.offer(offers_of(range(100, 200)))
    slots.remove(3)
    assert same(state, copies)


@every_selection
def test_all_are_kept_while_there_is_room_and_awkward_offers_do_no_harm(name: str) -> None:
    roomy = Slots(ALL[name](), 50)
    assert sorted(roomy.offer(offers_of(range(30)))) == list(range(30))
    roomy.offer(offers_of(range(30, 50)))
    assert sorted(roomy.numbers) == list(range(50))
    slots, empty = Slots(ALL[name](), 1), np.zeros(0, dtype=np.int64)
    assert slots.offer(Offers(0, 0, empty, empty, np.zeros(0), np.zeros((0, 3)))) == []
    one, nan = np.zeros(7, dtype=np.int64), np.full(7, np.nan)
    for first in (0, 7):  # all the same, and nothing known of losses
        slots.offer(Offers(7, first, one, one, nan, np.zeros((7, 3))))
    assert len(slots.numbers) == 1
    slots.remove(0)
    slots.offer(Offers(7, 0, one, one, nan, np.ones((7, 3))))


@every_selection
def test_errors_name_what_is_wrong(name: str) -> None:
    selection = ALL[name]()
    selection.start(5, 1)
    with pytest.raises(ValueError, match=r"remembers \[.*\], but the saved state has \['x'\]"):
        selection.load_state_dict({"x": 1})
    if selection.needs:
        with pytest.raises(InvalidValueError) as error:
            selection.choose(Offers(1, 0))
        assert error.value.option in {f"Offers.{COLUMNS[need]}" for need in selection.needs}


def test_selections_are_copied_or_found_by_name() -> None:
    given = LossAware()
    copied = as_selection(given)
    assert type(copied) is LossAware
    assert copied is not given
    assert type(as_selection("reservoir")) is Reservoir


def test_needs_that_there_are_none_of_are_refused_at_once() -> None:
    class Misspelt(Reservoir):
        needs = frozenset({"losses"})

    with refused("needs", found=["losses"]):
        ReplayBuffer(5, Misspelt())


def test_what_a_selection_changes_in_public_is_no_option_that_a_saved_buffer_must_have(tmp_path: Path) -> None:
    class Counting(Reservoir):
        def start(self, capacity: int, key: int) -> None:
            super().start(capacity, key)
            self.calls = 0

        def choose(self, offers: Offers) -> Any:
            self.calls += 1
            return super().choose(offers)

    saved, loaded = ReplayBuffer(5, Counting(), seed=3), ReplayBuffer(5, Counting(), seed=3)
    saved.remember("letters", list("abcdefgh"))
    loaded.remember("letters", list("abcdefgh"), [])
    saved.save(tmp_path)
    loaded.load(tmp_path)
    assert (len(loaded), loaded.selection.capacity, loaded.selection.key) == (5, 5, 3)
