import inspect
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import replay.retrieval
from replay.retrieval import LeastRecent, Retrieval, Uniform, as_retrieval, retrieval_classes

every_retrieval = pytest.mark.parametrize("kind", [Uniform, LeastRecent])


def started(kind: type[Retrieval], capacity: int, key: int = 1, size: int = 0) -> Retrieval:
    retrieval = kind()
    retrieval.start(capacity, key)
    retrieval.placed(np.arange(size))
    return retrieval


@every_retrieval
@pytest.mark.parametrize("size", [1, 2, 3, 17, 1_000])
def test_a_draw_gives_no_entry_twice_and_changes_nothing(kind: type[Retrieval], size: int) -> None:
    retrieval = started(kind, 2_000, size=size)
    for count in {0, 1, size // 2, size}:
        drawn = retrieval.slots(0, count, size)
        assert drawn.dtype == np.int64
        assert len(set(drawn.tolist())) == count
        assert set(drawn.tolist()) <= set(range(size))
        np.testing.assert_array_equal(retrieval.slots(0, count, size), drawn)


@every_retrieval
@given(counts=st.lists(st.integers(1, 7), min_size=1, max_size=10), size=st.integers(7, 30))
def test_coming_draws_are_as_predicted(kind: type[Retrieval], counts: list[int], size: int) -> None:
    retrieval = started(kind, 30, size=size)
    starts = np.cumsum([0, *counts[:-1]]).tolist()
    predicted = [retrieval.slots(start, count, size).tolist() for start, count in zip(starts, counts, strict=True)]
    for start, count, expected in zip(starts, counts, predicted, strict=True):
        drawn = retrieval.slots(start, count, size)
        retrieval.drawn(start, drawn)
        assert drawn.tolist() == expected


class TestUniform:
    def test_all_ordered_pairs_are_drawn_alike(self) -> None:
        size, num_draws = 6, 9_000
        retrieval = started(Uniform, size)
        counts = np.zeros((size, size))
        for start in range(num_draws):
            first, second = retrieval.slots(2 * start, 2, size)
            counts[first, second] += 1
        assert np.diag(counts).sum() == 0
        expected = num_draws / (size * (size - 1))
        pairs = counts[~np.eye(size, dtype=bool)]
        assert ((pairs - expected) ** 2 / expected).sum() < 29 + 5 * np.sqrt(58)

    def test_draws_do_not_know_each_other(self) -> None:
        retrieval, together = started(Uniform, 10), np.zeros((10, 10))
        draws = [int(retrieval.slots(start, 1, 10)[0]) for start in range(0, 16_000, 4)]
        for pair in pairwise(draws):
            together[pair] += 1
        assert ((together - 39.99) ** 2 / 39.99).sum() < 99 + 5 * np.sqrt(198)

    def test_key_position_and_size_count(self) -> None:
        whole = started(Uniform, 10**6).slots(5, 20, 10**6).tolist()
        assert started(Uniform, 10**6, key=2).slots(5, 20, 10**6).tolist() != whole
        assert started(Uniform, 10**6).slots(6, 20, 10**6).tolist() != whole
        assert started(Uniform, 10**6).slots(5, 20, 10**6 // 2).tolist() != whole

    def test_golden_values(self) -> None:
        assert started(Uniform, 100, key=7).slots(3, 6, 100).tolist() == [54, 96, 7, 14, 83, 15]


class Plain:
    """Least recently replayed first, with a list."""

    def __init__(self) -> None:
        self.line: list[int] = []

    def send_to_end(self, slots: list[int]) -> None:
        self.line = [slot for slot in self.line if slot not in slots] + slots

    def remove(self, slot: int, last: int) -> None:
        self.line.remove(slot)
        self.line = [slot if other == last else other for other in self.line]


class TestLeastRecent:
    @given(
        capacity=st.integers(1, 9),
        steps=st.lists(
            st.tuples(st.sampled_from(["draw", "place", "remove", "resume"]), st.integers(0, 10**6)), max_size=60
        ),
    )
    def test_is_a_list_in_which_what_is_replayed_goes_to_the_end(
        self, capacity: int, steps: list[tuple[str, int]]
    ) -> None:
        retrieval, plain, position = started(LeastRecent, capacity), Plain(), 0
        for step, number in steps:
            size = len(plain.line)
            if step == "draw" and size:
                count, skipped = 1 + number % size, number % 5
                ahead = (plain.line * (2 + skipped))[skipped : skipped + count]
                assert retrieval.slots(position + skipped, count, size).tolist() == ahead
                drawn = retrieval.slots(position, count, size)
                assert drawn.tolist() == plain.line[:count]
                retrieval.drawn(position, drawn)
                plain.send_to_end(drawn.tolist())
                position += count
            elif step == "place":
                random = np.random.default_rng(number)
                new = np.arange(size, random.integers(size, capacity + 1))
                old = random.permutation(size)[: random.integers(0, size + 1)]
                slots = np.concatenate([old, new]).astype(np.int64)
                retrieval.placed(slots)
                plain.send_to_end(slots.tolist())
            elif step == "remove" and size:
                retrieval.removed(number % size, size - 1)
                plain.remove(number % size, size - 1)
            elif step == "resume":
                state = retrieval.state_dict()
                assert state["line"].tolist() == plain.line
                retrieval = started(LeastRecent, capacity)
                retrieval.load_state_dict(state)

    def test_every_entry_comes_before_any_comes_again(self) -> None:
        retrieval, seen = started(LeastRecent, 100, size=100), []
        for start in range(0, 300, 7):
            drawn = retrieval.slots(start, 7, 100)
            retrieval.drawn(start, drawn)
            seen += drawn.tolist()
        assert sorted(seen[:100]) == sorted(seen[100:200]) == list(range(100))

    def test_a_state_of_a_larger_buffer_is_refused(self) -> None:
        state = started(LeastRecent, 10, size=9).state_dict()
        with pytest.raises(
            ValueError, match="has room for 8 entries, but the saved state is of a larger buffer, with 9"
        ):
            started(LeastRecent, 8).load_state_dict(state)
        with pytest.raises(ValueError, match=r"remembers \['line', 'position'\]"):
            started(LeastRecent, 8).load_state_dict({})


class TestNames:
    def test_all_are_exported_and_documented(self) -> None:
        found = [getattr(replay.retrieval, name) for name in replay.retrieval.__all__]
        concrete = {own for own in found if inspect.isclass(own) and not inspect.isabstract(own)}
        assert concrete == set(retrieval_classes().values())
        assert all(own.__doc__ for own in concrete)

    def test_by_name_or_as_it_is(self) -> None:
        own = Uniform()
        copied = as_retrieval(own)
        assert type(copied) is Uniform
        assert copied is not own
        assert type(as_retrieval("least_recent")) is LeastRecent
        assert own.name == "Uniform"

    def test_errors(self) -> None:
        with pytest.raises(ValueError, match=r"no retrieval is called 'unifrm'.*Did you mean 'Uniform'\?"):
            as_retrieval("unifrm")
        with pytest.raises(TypeError, match="retrieval is the class Uniform; give an instance"):
            as_retrieval(Uniform)
        with pytest.raises(TypeError, match="got float"):
            as_retrieval(0.5)
