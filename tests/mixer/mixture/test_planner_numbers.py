"""What a planner tells of its streams and keeps of them, by hand."""

from collections.abc import Iterator, Sequence

import numpy as np
import pytest

from mixer.mixture.cursors import IterableCursor
from mixer.mixture.planner import Planner
from mixer.mixture.stream import Stream
from tests.mixer.mixture.test_planner import draw, make_streams, memory_planner
from tests.mixer.plans import make_plan


class Rows:
    def __iter__(self) -> Iterator[int]:
        return iter(range(5))


def with_rows() -> Planner:
    return Planner([Stream("a", range(9)), Stream("web", Rows())], seed=0)


@pytest.mark.parametrize(
    ("own", "factors", "expected"),
    [
        ([1.0, 1.0], None, None),
        ([1.0, 1.0], [3.0, 4.0], [3.0, 4.0]),
        ([2.0, 0.5], None, [2.0, 0.5]),
        ([2.0, 0.5], [3.0, 4.0], [6.0, 2.0]),
        ([1.0, 0.5], [3.0, 4.0], [3.0, 2.0]),
    ],
)
def test_the_policys_factors_are_multiplied_by_the_streams_own(own, factors, expected) -> None:
    planner = Planner([Stream(f"s{k}", range(3), loss_weight=weight) for k, weight in enumerate(own)], seed=0)
    found = planner.weigh_losses(None if factors is None else np.array(factors))
    assert (None if found is None else found.tolist()) == expected


class TestNumbers:
    def test_a_sample_that_came_again_is_no_other_one(self) -> None:
        planner = Planner(make_streams(9, 20), seed=0)
        draw(planner, [1, 1], 24)
        assert planner.unique.tolist() == [9, 12]
        assert planner.unique.dtype == planner.seen.dtype == np.int64
        assert planner.row_drawers == {}
        assert planner.undelivered.tolist() == [0, 0]

    def test_what_rows_there_are_shows_on_the_way(self) -> None:
        planner = with_rows()
        draw(planner, [1, 1], 12)
        assert list(planner.row_drawers) == [1]
        cursor = planner.row_drawers[1]
        assert isinstance(cursor, IterableCursor)
        cursor.end_pass(num_kept=0, num_undelivered=3)
        draw(planner, [1, 1], 8)
        assert planner.unique.tolist() == [9, 6]
        assert planner.undelivered.tolist() == [0, 3]
        assert planner.undelivered.dtype == np.int64

    def test_what_is_owed_is_the_share_less_what_was_drawn(self) -> None:
        planner = Planner(make_streams(9, 9, 9), seed=0)
        draw(planner, [5, 3, 2], 1)
        assert planner.deficit == pytest.approx([-0.5, 0.3, 0.2])
        draw(planner, [5, 3, 2], 2)
        assert planner.deficit == pytest.approx([-0.5, -0.1, 0.6])

    def test_an_example_is_the_sample_of_its_number(self) -> None:
        planner = Planner(make_streams(9, 50), seed=0)
        for number in range(3):
            arguments = (number,) if number else ()
            stream_id, positions, indices = planner.example(make_plan([2, 3], [4, 7]), 1, *arguments)
            assert (stream_id, list(positions)) == (1, [7 + number])
            assert indices.tolist() == planner.cursors[1].references(range(7 + number, 8 + number)).tolist()


class TestThere:
    def planner(self) -> Planner:
        spans = {"first": (0.0, 0.5), "second": (0.25, 1.0)}
        streams = [Stream(name, range(9), None, 1, enters_at=a, leaves_at=b) for name, (a, b) in spans.items()]
        return Planner(streams, seed=0)

    @pytest.mark.parametrize(
        ("progress", "expected"),
        [(0.0, [1, 0]), (0.2, [1, 0]), (0.25, [1, 1]), (0.49, [1, 1]), (0.5, [0, 1]), (1.0, [0, 1])],
    )
    def test_from_entering_to_leaving(self, progress: float, expected: list[int]) -> None:
        assert self.planner().active(progress).tolist() == [bool(there) for there in expected]

    def test_the_sum_of_shares_is_one_of_those_that_are_there(self) -> None:
        planner = self.planner()
        assert planner.shares(np.array([3.0, 1.0]), 0.0)[0].tolist() == [1.0, 0.0]
        assert planner.shares(np.array([3.0, 1.0]), 0.3)[0].tolist() == [0.75, 0.25]
        assert planner.shares(np.array([3.0, 1.0]), 0.3)[1].tolist() == [9.0, 9.0]
        assert planner.shares(np.array([3.0, 0.0]), 0.7)[0].tolist() == [0.0, 0.0]

    @pytest.mark.parametrize(
        "spans", [[(0.5, 1.0), (0.0, 0.5)], [(0.0, 1.0), (0.2, 0.4)], [(0.0, 0.6), (0.1, 0.3), (0.6, 1.0)]]
    )
    def test_a_run_without_a_gap_is_taken(self, spans: Sequence[tuple[float, float]]) -> None:
        memory = memory_planner(5)[0].streams[1]
        streams = [Stream(f"s{k}", range(9), enters_at=begin, leaves_at=end) for k, (begin, end) in enumerate(spans)]
        assert len(Planner([memory, *streams], seed=0).streams) == len(spans) + 1


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ([(0.28, 50)] * 5, [2, 3, 3, 3, 3]),  # the remainder is carried over
        ([(0.03, 50)] * 7, [0, 0, 0, 1, 0, 0, 1]),
        ([(0.28, 2), (0.03, 50)], [2, 0]),  # and lost where the memory gave all it had,
        ([(0.28, 3), (0.03, 50)], [2, 1]),
        ([(0.28, 50), (0.0, 50), (0.03, 50)], [2, 0, 0]),  # or nothing is asked for
    ],
)
def test_the_remainder(steps: list[tuple[float, float]], expected: list[int]) -> None:
    planner, _ = memory_planner(50)
    shares, found = np.array([1.0, 0.0]), []
    for step, (ratio, available) in enumerate(steps):
        limits = np.array([np.inf, available])
        found.append(int(planner.draw(shares, limits, 10, step, np.array([0.0, ratio]))[0][1]))
    assert found == expected


class TestMultinomial:
    @pytest.mark.parametrize(("seed", "key"), [(7, 7), (-1, 2**63 - 1), (2**63 + 2, 2)])
    def test_the_key_is_the_seed_the_step_and_how_many_streams_there_are(self, seed: int, key: int) -> None:
        planner = Planner(make_streams(90, 90, 90), seed=seed, drawing="multinomial")
        expected = np.random.default_rng([key, 4, 2]).multinomial(50, [0.75, 0.0, 0.25])
        assert draw(planner, [3, 0, 1], 50, step=4) == expected.tolist()
        assert planner.deficit.tolist() == [0.0, 0.0, 0.0]

    def test_what_a_stream_cannot_give_is_drawn_anew_from_the_others(self) -> None:
        streams = [Stream("a", range(5), max_epochs=1), *make_streams(90, 90)]
        expected = np.random.default_rng([0, 3, 2]).multinomial(45, [0.0, 0.5, 0.5])
        planner = Planner(streams, seed=0, drawing="multinomial")
        assert draw(planner, [8, 1, 1], 50, step=3) == [5, *expected.tolist()[1:]]


def test_streams_of_the_same_name_go_on_and_new_ones_begin() -> None:
    planner = Planner(make_streams(9, 9, 9), seed=0)
    draw(planner, [5, 3, 2], 8)
    state = planner.state_dict()
    resumed = Planner([Stream("s2", range(9)), Stream("new", range(9)), Stream("s0", range(9))], seed=4)
    resumed.load_state_dict(state, allow_inexact=True)
    assert resumed.seen.tolist() == [int(planner.seen[2]), 0, int(planner.seen[0])]
    assert resumed.seen.dtype == np.int64
    assert resumed.deficit.tolist() == [0.0, 0.0, 0.0]
    assert resumed.positions.tolist() == resumed.seen.tolist()


def test_a_memory_has_the_key_of_its_stream_and_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    planner, (memory,) = memory_planner(3)
    memory_stream = planner.streams[1]
    keys, new_cursor = [], memory.new_cursor
    monkeypatch.setattr(type(memory), "new_cursor", lambda self, key: keys.append(key) or new_cursor(key))
    for seed in (5, 6):
        Planner(planner.streams, seed)
    assert keys == [memory_stream.order_key(5), memory_stream.order_key(6)]
    assert keys[0] != keys[1]
