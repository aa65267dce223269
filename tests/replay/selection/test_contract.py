"""What every selection promises."""

import inspect
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from replay.selection import Herding, Offers, Reservoir, Ring, Selection, Surprise, as_selection, selection_classes
from tests.replay.selection.offering import BY_TASK, MAKERS, Slots, offers_of, splits

ALL = {**MAKERS, **BY_TASK}
every_selection = pytest.mark.parametrize("name", ALL)
every_one_by_one = pytest.mark.parametrize("name", MAKERS)
TOTAL = 200
steps = st.lists(st.tuples(st.booleans(), st.integers(0, 10**6)), max_size=12)


def same(left: Any, right: Any) -> bool:
    return bool(np.array_equal(left, right)) and np.asarray(left).dtype == np.asarray(right).dtype


@every_one_by_one
@given(cuts=st.lists(st.integers(0, TOTAL), max_size=20), capacity=st.integers(1, 40))
def test_the_split_into_calls_does_not_matter(name: str, cuts: list[int], capacity: int) -> None:
    whole, parts = Slots(ALL[name](), capacity), Slots(ALL[name](), capacity)
    together = whole.offer(offers_of(range(TOTAL)))
    apart = [slot for part in splits(TOTAL, cuts) for slot in parts.offer(offers_of(part))]
    assert together == apart
    assert whole.numbers == parts.numbers


@every_selection
@given(cut=st.integers(0, TOTAL), removals=st.lists(st.integers(0, 10**6), max_size=5), capacity=st.integers(1, 40))
def test_a_saved_state_goes_on_as_if_nothing_had_been(name: str, cut: int, removals: list[int], capacity: int) -> None:
    going = Slots(ALL[name](), capacity)
    going.offer(offers_of(range(cut)))
    for removal in removals:
        if going.numbers:
            going.remove(removal % len(going.numbers))
    resumed = ALL[name]()
    resumed.start(capacity, key=5)
    saved = going.selection.state_dict()
    resumed.load_state_dict(saved)
    assert resumed.size == going.selection.size
    for part in splits(2 * TOTAL, [TOTAL])[cut == 0 :]:
        offers = offers_of(range(cut + part.start, cut + part.stop))
        assert going.offer(offers) == resumed.choose(offers).tolist()
        if going.numbers:
            going.remove(0)
            resumed.remove(0)
    ends = going.selection.state_dict(), resumed.state_dict()
    assert all(same(ends[0][entry], ends[1][entry]) for entry in ends[0])


@every_selection
def test_what_is_saved_is_plain_and_not_changed_later(name: str) -> None:
    slots = Slots(ALL[name](), 20)
    slots.offer(offers_of(range(100)))
    state = slots.selection.state_dict()
    kinds = (str, int, float, bool, type(None), np.ndarray)
    assert all(type(value) in kinds for value in state.values())
    copies = {entry: np.array(value) for entry, value in state.items()}
    slots.offer(offers_of(range(100, 200)))
    slots.remove(3)
    assert all(same(np.asarray(value), copies[entry]) for entry, value in state.items())


@every_selection
@given(steps=steps, capacity=st.integers(1, 12))
def test_removing_keeps_slots_and_sizes_right(name: str, steps: list[tuple[bool, int]], capacity: int) -> None:
    slots, offered = Slots(ALL[name](), capacity), 0
    for removes, number in steps:
        if removes and slots.numbers:
            slots.remove(number % len(slots.numbers))
        else:
            slots.offer(offers_of(range(offered, offered + number % 30)))
            offered += number % 30
        assert len(set(slots.numbers)) == len(slots.numbers)


@every_selection
def test_all_are_kept_while_there_is_room(name: str) -> None:
    slots = Slots(ALL[name](), 50)
    assert sorted(slots.offer(offers_of(range(30)))) == list(range(30))
    slots.offer(offers_of(range(30, 50)))
    assert sorted(slots.numbers) == list(range(50))


@every_selection
@pytest.mark.parametrize("count", [1, 7])
def test_awkward_offers(name: str, count: int) -> None:
    slots = Slots(ALL[name](), 1)
    empty = np.zeros(0, dtype=np.int64)
    assert slots.offer(Offers(0, 0, empty, empty, np.zeros(0), np.zeros(0), np.zeros((0, 3)))) == []
    one = np.zeros(count, dtype=np.int64)
    nan = np.full(count, np.nan)
    for first in (0, count):  # all the same, and nothing known of losses and gradients
        slots.offer(Offers(count, first, one, one, nan, nan, np.zeros((count, 3))))
    assert len(slots.numbers) == 1
    slots.remove(0)
    slots.offer(Offers(count, 0, one, one, nan, nan, np.ones((count, 3))))


@every_selection
def test_another_key_and_another_start_forget_everything(name: str) -> None:
    slots = Slots(ALL[name](), 10)
    first = slots.offer(offers_of(range(50)))
    again = Slots(slots.selection, 10)
    assert again.offer(offers_of(range(50))) == first


@every_selection
def test_errors_name_what_is_wrong(name: str) -> None:
    selection = ALL[name]()
    with pytest.raises(ValueError, match="capacity must be a whole number, 1 or more, got 0"):
        selection.start(0, 1)
    selection.start(5, 1)
    state = selection.state_dict()
    with pytest.raises(ValueError, match=r"remembers \[.*\], but the saved state has \['x'\]"):
        selection.load_state_dict({"x": 1})
    with pytest.raises(ValueError, match="has capacity 5, but the saved state is of one with 6"):
        selection.load_state_dict({**state, "capacity": 6})
    if selection.needs:
        with pytest.raises(ValueError, match=r"Offers\.\w+ must be given, since the selection needs it"):
            selection.choose(Offers(1, 0))


@pytest.mark.parametrize(("saved", "own"), [(Ring(2), Ring(3)), (Ring(), Ring(by="task")), (Herding(1), Herding())])
def test_a_state_of_other_options_is_refused(saved: Selection, own: Selection) -> None:
    saved.start(9, 0)
    own.start(9, 0)
    with pytest.raises(ValueError, match="build the buffer as it was when it was saved"):
        own.load_state_dict(saved.state_dict())


class TestNames:
    def test_all_are_exported_and_documented_with_their_source(self) -> None:
        import replay.selection

        concrete = [
            value
            for name in replay.selection.__all__
            if inspect.isclass(value := getattr(replay.selection, name)) and issubclass(value, Selection)
        ]
        assert set(selection_classes().values()) == {cls for cls in concrete if not inspect.isabstract(cls)}
        for name, cls in selection_classes().items():
            assert any(word in (cls.__doc__ or "") for word in ("arXiv", "19", "20")), name
            own = "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name).lstrip("_")
            assert cls.__module__ == f"replay.selection.{own}"

    def test_by_name_or_as_it_is(self) -> None:
        surprise = Surprise()
        copied = as_selection(surprise)
        assert type(copied) is Surprise
        assert copied is not surprise
        assert type(as_selection("reservoir")) is Reservoir
        assert surprise.name == "Surprise"

    def test_errors(self) -> None:
        with pytest.raises(ValueError, match=r"no selection is called 'reservoi'.*Did you mean 'Reservoir'\?"):
            as_selection("reservoi")
        with pytest.raises(TypeError, match=r"selection is the class Ring; give an instance"):
            as_selection(Ring)
        with pytest.raises(TypeError, match="got int"):
            as_selection(3)
