from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from replay import ReplayBuffer
from replay.retrieval import LeastRecent, Retrieval, Uniform, as_retrieval


def started(kind: type[Retrieval], capacity: int, key: int = 1, size: int = 0) -> Retrieval:
    retrieval = kind()
    retrieval.start(capacity, key)
    retrieval.placed(np.arange(size))
    return retrieval


def test_pairs_of_a_draw_and_of_draws_are_even() -> None:
    retrieval, own, other = started(Uniform, 6), np.zeros((6, 6)), np.zeros((6, 6))
    draws = [retrieval.slots(2 * start, 2, 6) for start in range(3_000)]
    for before, now in pairwise(draws):
        own[tuple(now)] += 1
        other[before[0], now[0]] += 1
    pairs = own[~np.eye(6, dtype=bool)]
    assert pairs.sum() == own.sum() == 2_999
    for counts, freedom in ((pairs, 29), (other.ravel(), 35)):
        expected = 2_999 / len(counts)
        assert ((counts - expected) ** 2 / expected).sum() < freedom + 5 * np.sqrt(2 * freedom)


def test_key_position_and_size_count() -> None:
    drawn = [
        started(Uniform, 10**6, key=key).slots(position, 20, size).tolist()
        for key, position, size in ((1, 5, 10**6), (2, 5, 10**6), (1, 6, 10**6), (1, 5, 10**6 // 2))
    ]
    assert drawn[0] not in drawn[1:]
    assert started(Uniform, 100, key=7).slots(3, 6, 100).tolist() == [54, 96, 7, 14, 83, 15]


STEPS = st.tuples(st.sampled_from(["draw", "place", "remove", "resume"]), st.integers(0, 10**6))


@given(capacity=st.integers(1, 9), steps=st.lists(STEPS, max_size=60))
def test_least_recent_is_a_list_whose_replayed_go_to_the_end(capacity: int, steps: list[tuple[str, int]]) -> None:
    retrieval, line, position = started(LeastRecent, capacity), list[int](), 0
    for step, number in steps:
        size = len(line)
        if step == "draw" and size:
            count, skipped = 1 + number % size, number % 5
            ahead = (line * (2 + skipped))[skipped : skipped + count]
            assert retrieval.slots(position + skipped, count, size).tolist() == ahead
            drawn = retrieval.slots(position, count, size)
            assert drawn.tolist() == line[:count]
            retrieval.drawn(position, drawn)
            line = line[count:] + line[:count]
            position += count
        elif step == "place":
            random = np.random.default_rng(number)
            new = np.arange(size, random.integers(size, capacity + 1))
            slots = np.concatenate([random.permutation(size)[: random.integers(0, size + 1)], new]).astype(np.int64)
            retrieval.placed(slots)
            line = [slot for slot in line if slot not in slots] + slots.tolist()
        elif step == "remove" and size:
            retrieval.removed(number % size, size - 1)
            line.remove(number % size)
            line = [number % size if slot == size - 1 else slot for slot in line]
        elif step == "resume":
            state = retrieval.state_dict()
            assert state["line"].tolist() == line
            retrieval = started(LeastRecent, capacity)
            retrieval.load_state_dict(state)


def test_a_state_of_a_larger_buffer_and_what_is_no_retrieval_are_refused() -> None:
    state = started(LeastRecent, 10, size=9).state_dict()
    with pytest.raises(ValueError, match="room for 8 entries, but the saved state is of a larger buffer, with 9"):
        started(LeastRecent, 8).load_state_dict(state)
    with pytest.raises(ValueError, match=r"remembers \['line', 'position'\]"):
        started(LeastRecent, 8).load_state_dict({})
    for wrong, said in (("unifrm", "Did you mean 'Uniform'"), (Uniform, "give an instance"), (1, "got int")):
        with pytest.raises((ValueError, TypeError), match=said):
            as_retrieval(wrong)


@pytest.mark.parametrize("wrong", [[0, 1, 1], [0, 1], [0, 1, 5], [-1, 0, 1], [0.0, 1.0, 2.0], [[0], [1], [2]]])
def test_slots_that_are_no_draw_are_refused(wrong: Any) -> None:
    class Wrong(Uniform):
        def slots(self, start: int, count: int, size: int) -> Any:
            return wrong

    buffer = ReplayBuffer(8, retrieval=Wrong(), seed=0)
    buffer.remember("a", ["x"] * 5)
    with pytest.raises(ValueError, match=r"retrieval=Wrong: slots must return .* 3 different slots below size=5, got"):
        buffer.new_cursor(0).advance(3)
