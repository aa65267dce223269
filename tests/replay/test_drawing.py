"""What a buffer draws: entries by positions, predicted and real, while it grows and forgets."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mixer import Stream
from mixer.mixture.planner import Planner
from replay import ReplayBuffer
from tests.replay.buffers import letters

DATA = letters(50)
both = pytest.mark.parametrize("retrieval", ["Uniform", "LeastRecent"])


def buffer_of(size: int, retrieval: str = "Uniform", storage: str = "references") -> ReplayBuffer:
    buffer = ReplayBuffer(12, storage=storage, retrieval=retrieval, seed=4)
    buffer.remember("a", DATA, range(size))
    return buffer


@both
@settings(max_examples=25)
@given(counts=st.lists(st.integers(0, 12), max_size=9), data=st.data())
def test_draws_give_no_entry_twice_and_stay_whatever_becomes_of_the_buffer(
    retrieval: str, counts: list[int], data: Any
) -> None:
    buffer, position = buffer_of(7, retrieval, storage="memory"), 0
    cursor = buffer.new_cursor(0)
    for count in counts:
        count = min(count, cursor.available)
        held = buffer._entries["row"].tolist()
        start = cursor.advance(count)
        assert start == position
        position += count
        assert buffer.num_drawn == position
        positions = np.arange(start, position)
        found = cursor.references(positions).tolist()
        assert len(set(found)) == count
        assert set(found) <= set(held)
        assert [held[slot] for slot in cursor.slots(positions).tolist()] == found
        buffer.remember("a", DATA, range(data.draw(st.integers(0, 30))))
        part = sorted(data.draw(st.sets(st.sampled_from(range(count)))) if count else [])
        assert cursor.references(positions[part]).tolist() == [found[place] for place in part]
        buffer.forget(buffer.entries["number"][: data.draw(st.integers(0, 2))].tolist())


@both
@settings(max_examples=25)
@given(counts=st.lists(st.integers(0, 7), min_size=1, max_size=6))
def test_where_the_buffer_stays_as_it_is_predictions_are_what_is_drawn(retrieval: str, counts: list[int]) -> None:
    buffer = buffer_of(7, retrieval)
    cursor = buffer.new_cursor(0)
    cursor.advance(3)
    for ahead in (cursor.ahead(), cursor.ahead()):  # a second forecast that differs from the first one
        spans = []
        for count in counts:
            start = ahead.advance(count)
            spans.append(range(start, start + count))
        predicted = [cursor.references(span).tolist() for span in spans]
        assert [ahead.references(span).tolist() for span in spans] == predicted
        assert cursor.references(range(3)).tolist() == cursor._last[2].tolist(), "nothing was drawn yet"
    for span, expected in zip(spans, predicted, strict=True):
        assert cursor.advance(len(span)) == span.start
        assert cursor.references(span).tolist() == expected


def test_predictions_of_a_buffer_that_was_emptied_are_no_errors() -> None:
    buffer = buffer_of(5)
    cursor = buffer.new_cursor(0)
    start = cursor.ahead().advance(4)
    buffer.forget(buffer.entries["number"].tolist())
    assert cursor.references(range(start, start + 4)).shape == (4,)
    assert (cursor.available, cursor.advance(0), buffer.num_drawn) == (0, 0, 0)


def test_a_drawer_is_the_buffers_own_state() -> None:
    buffer = buffer_of(9)
    first = buffer.new_cursor(0)
    first.advance(5)
    second = buffer.new_cursor(1)  # another run of the same buffer
    assert second.advance(0) == 5
    second.load_state_dict(first.state_dict())
    for state, message in (
        ({"position": 4, "memory": True}, "4 samples had been drawn from the buffer and 9 offered .*, 5 and 9"),
        ({"position": 4, "length": 9, "key": 1}, "had a data set when the run was saved and is a replay buffer now"),
    ):
        with pytest.raises(ValueError, match=message):
            second.load_state_dict(state)
        second.load_state_dict(state, allow_inexact=True)
    assert second.advance(1) == 5


@settings(max_examples=40)
@given(
    seed=st.integers(0, 50),
    total=st.integers(1, 20),
    ratio=st.sampled_from([0.0, 0.1, 0.5]),
    additional=st.booleans(),
)
def test_a_planner_draws_a_memory_that_grows_within_a_sample_of_its_share(
    seed: int, total: int, ratio: float, additional: bool
) -> None:
    buffer = ReplayBuffer(30, seed=seed)
    planner = Planner([Stream("a", DATA), Stream("memory", buffer)], seed)
    weights = np.array([1.0, 0.0]) if additional else np.array([1 - ratio, ratio])
    on_top = np.array([0.0, ratio]) if additional else None
    owed = 0.0
    for step in range(12):
        shares, available = planner.shares(weights, 0.0)
        size = len(buffer)
        counts, starts = planner.draw(shares, available, total, step, on_top)
        assert counts[0] + (0 if additional else counts[1]) == total
        assert counts[1] <= size
        owed += ratio * total if size else 0.0
        if counts[1] == size:
            owed = float(counts[1])  # what it could not give is not made up for
        owed -= counts[1]
        if size >= total:
            assert -1.0 < owed < 1.0 + 1e-9
        assert (starts[1] + counts[1]) == buffer.num_drawn
        buffer.remember("a", DATA, range(step * 3, step * 3 + 3))
