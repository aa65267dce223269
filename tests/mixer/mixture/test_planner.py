import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from mixer.mixture.groups import Grouping
from mixer.mixture.permutation import Order
from mixer.mixture.planner import Planner
from mixer.mixture.stream import Stream
from tests.mixer.plans import make_plan, samples_of
from tests.refusals import refused


def make_streams(*lengths: int, **fields: object) -> list[Stream]:
    return [Stream(f"s{k}", range(length), **fields) for k, length in enumerate(lengths)]


def draw(planner: Planner, weights: Sequence[float], total: int, step: int = 0, progress: float = 0.0) -> list[int]:
    shares, available = planner.shares(np.array(weights, dtype=np.float64), progress)
    counts, _ = planner.draw(shares, available, total, step)
    return counts.tolist()


@given(
    weights=st.lists(st.floats(0.01, 1.0), min_size=1, max_size=6),
    totals=st.lists(st.integers(1, 100), min_size=1, max_size=20),
)
def test_counts_sum_to_the_batch_and_move_the_streams_on(weights: list[float], totals: list[int]) -> None:
    planner = Planner(make_streams(*[50] * len(weights)), seed=0)
    seen = np.zeros(len(weights), dtype=np.int64)
    for step, total in enumerate(totals):
        shares, available = planner.shares(np.array(weights), 0.0)
        counts, starts = planner.draw(shares, available, total, step)
        assert counts.sum() == total
        assert starts.tolist() == seen.tolist()
        seen += counts
    assert planner.seen.tolist() == seen.tolist()


class TestExhaustion:
    @pytest.mark.parametrize(
        ("lengths", "max_epochs", "weights", "total", "expected"),
        [
            ((2, 99, 99), (1, None, None), [8, 1, 3], 42, [2, 10, 30]),  # the others are renormalised
            ((2, 9, 9), (1, 1, None), [4, 3, 1], 40, [2, 9, 29]),  # several run out in one step
            ((5, 6), (1, 1), [1, 1], 40, [5, 6]),  # all run out: the last step is smaller
        ],
    )
    def test_streams_that_run_out_leave_the_rest_to_others(self, lengths, max_epochs, weights, total, expected) -> None:
        streams = [
            Stream(f"s{k}", range(length), max_epochs=most)
            for k, (length, most) in enumerate(zip(lengths, max_epochs, strict=True))
        ]
        planner = Planner(streams, seed=0)
        assert draw(planner, weights, total) == expected
        assert planner.shares(np.array(weights), 0.0)[0].any() == (None in max_epochs)

    @given(
        lengths=st.lists(st.integers(1, 30), min_size=1, max_size=5),
        epochs=st.sampled_from([1.0, 1.5, 2.0]),
        total=st.integers(1, 20),
        drawing=st.sampled_from(["exact", "multinomial"]),
    )
    def test_every_stream_gives_exactly_its_samples(self, lengths, epochs, total, drawing) -> None:
        streams = make_streams(*lengths, max_epochs=epochs)
        planner = Planner(streams, seed=1, drawing=drawing)
        given_so_far, whole = 0, sum(stream.end for stream in streams)
        while given_so_far < whole:
            counts = draw(planner, np.arange(1, len(lengths) + 1), total, given_so_far)
            assert sum(counts) == min(total, whole - given_so_far)
            given_so_far += sum(counts)
        assert planner.seen.tolist() == [stream.end for stream in streams]

    @pytest.mark.parametrize("total", [1, 7, 50])
    @pytest.mark.parametrize("weights", [[2, 1, 1], [5, 0, 1], [0.1, 7, 2]])
    def test_endless_streams_give_exactly_the_samples_of_their_group(self, weights: list[float], total: int) -> None:
        streams = [Stream(name, range(10), groups={"g": group}) for name, group in (("a", "x"), ("b", "x"), ("c", "y"))]
        planner = Planner(streams, seed=0, groupings=[Grouping("g", max_epochs={"x": 1.7})])
        counts = np.array([draw(planner, weights, total, step) for step in range(700 // total)])
        assert counts[:, :2].sum() == 34
        assert set(counts.sum(axis=1).tolist()) == {total}

    def test_a_group_gives_exactly_its_samples_although_a_member_ran_out(self) -> None:
        streams = [
            Stream("a", range(10), max_epochs=0.5, groups={"g": "x"}),
            Stream("b", range(10), groups={"g": "x"}),
            Stream("c", range(10), groups={"g": "y"}),
        ]
        planner = Planner(streams, seed=0, groupings=[Grouping("g", max_epochs={"x": 1.5})])
        counts = np.array([draw(planner, [1, 1, 1], 6, step) for step in range(20)])
        assert counts.sum(axis=0)[:2].tolist() == [5, 25]
        assert counts.sum(axis=1).tolist() == [6] * 20


@pytest.mark.parametrize("spans", [[(0.1, 1.0)], [(0.0, 0.3), (0.5, 1.0)], [(0.0, 0.5), (0.2, 0.9)]])
def test_a_part_of_the_run_without_streams_is_refused(spans: list[tuple[float, float]]) -> None:
    streams = [Stream(f"s{k}", [1], enters_at=enters, leaves_at=leaves) for k, (enters, leaves) in enumerate(spans)]
    for more in ([], [Stream("memory", _Growing(5))]):  # which does not stand in for them
        with refused("enters_at"):
            Planner([*streams, *more], seed=0)


class TestState:
    def planner(self, drawing: str = "exact", seed: int = 2) -> Planner:
        streams = [Stream("a", range(20), max_epochs=2), Stream("b", range(30)), Stream("c", range(7), leaves_at=0.8)]
        return Planner(streams, seed=seed, drawing=drawing)

    @given(step=st.integers(0, 24), drawing=st.sampled_from(["exact", "multinomial"]))
    def test_saved_at_any_step_it_goes_on_alike(self, step: int, drawing: str) -> None:
        planner, resumed = self.planner(drawing), self.planner(drawing)
        for done in range(step):
            draw(planner, [3, 2, 1.3], 7, done, done / 25)
        resumed.load_state_dict(json.loads(json.dumps(planner.state_dict())))
        assert resumed.seen.tolist() == planner.seen.tolist()
        for later in range(step, 25):
            assert draw(resumed, [3, 2, 1.3], 7, later, later / 25) == draw(planner, [3, 2, 1.3], 7, later, later / 25)
        assert resumed.state_dict() == planner.state_dict()

    @pytest.mark.parametrize(
        ("streams", "seed", "option"),
        [
            ([("a", 20), ("x", 30)], 0, "streams"),
            ([("a", 20), ("b", 31)], 0, "length"),
            ([("a", 20), ("b", 30)], 1, "data_seed"),
            ([("a", 20), ("b", 30, None, None, False)], 0, "shuffle"),
        ],
    )
    def test_other_streams_are_refused(self, streams: list[Any], seed: int, option: str) -> None:
        saved = Planner([Stream("a", range(20)), Stream("b", range(30))], seed=0).state_dict()
        other = Planner([Stream(name, range(length), *more) for name, length, *more in streams], seed)
        with refused(option):
            other.load_state_dict(saved)


@pytest.mark.parametrize("is_balanced", [True, False])
@pytest.mark.parametrize("num_streams", [1, 3, 33, 80])
@pytest.mark.parametrize("world_size", [1, 3])
def test_it_reads_the_order_of_each_stream(num_streams: int, world_size: int, is_balanced: bool) -> None:
    random = np.random.default_rng(num_streams)
    streams = make_streams(*random.integers(1, 60, num_streams).tolist())
    planner = Planner(streams, seed=1)
    plan = make_plan(random.integers(0, 9, num_streams) + (num_streams == 1), random.integers(0, 99, num_streams))
    for rank in range(world_size):
        share = planner.rank_share(plan, rank, world_size, is_balanced)
        own = samples_of(plan, rank, world_size, is_balanced)
        assert [(part.stream_id, int(position)) for part in share for position in part.positions] == own
        for part in share:
            order = order_of(streams[part.stream_id])
            found = [int(order.indices(int(position), 1)[0]) for position in part.positions]
            assert part.indices.tolist() == found


def order_of(stream: Stream) -> Order:
    return Order(stream.num_samples, stream.order_key(1), stream.shuffle)


def test_another_way_of_drawing_is_refused() -> None:
    with refused("drawing"):
        Planner(make_streams(3), seed=0, drawing="random")


class _Growing:
    """A memory that holds so many samples, which never change."""

    def __init__(self, size: int):
        self.size = size

    def new_cursor(self, key: int) -> "_GrowingCursor":
        return _GrowingCursor(self)

    def reader(self, datasets: object) -> object:
        return self

    def follow(self, *_: object) -> object:
        return lambda plan: None

    def as_method(self, *_: object) -> object:
        raise NotImplementedError


class _GrowingCursor:
    def __init__(self, dataset: _Growing):
        self.dataset, self.position = dataset, 0

    @property
    def available(self) -> int:
        return self.dataset.size

    def advance(self, count: int) -> int:
        self.position += count
        return self.position - count

    def state_dict(self) -> dict[str, int]:
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, int], allow_inexact: bool = False) -> None:
        self.position = state["position"]


def memory_planner(*sizes: int, max_epochs: float | None = None) -> tuple[Planner, list[_Growing]]:
    memories = [_Growing(size) for size in sizes]
    streams = make_streams(50, max_epochs=max_epochs)
    streams += [Stream(f"memory{k}", memory) for k, memory in enumerate(memories)]
    return Planner(streams, seed=0), memories


class TestMemories:
    def test_an_empty_memory_leaves_its_share_to_the_others(self) -> None:
        planner, (memory,) = memory_planner(0)
        assert draw(planner, [1, 1], 8) == [8, 0]
        memory.size = 3
        assert draw(planner, [1, 1], 8) == [5, 3]
        memory.size = 30
        assert draw(planner, [1, 1], 8) == [4, 4]

    def test_memories_do_not_keep_a_run_going(self) -> None:
        planner, _ = memory_planner(10, max_epochs=1.0)
        assert draw(planner, [1, 1], 30) == [20, 10]
        assert draw(planner, [1, 1], 40) == [30, 10]
        assert planner.shares(np.array([1.0, 1.0]), 0.0)[0].tolist() == [0.0, 0.0]
        assert planner.shares(np.array([0.0, 1.0]), 0.0)[0].tolist() == [0.0, 1.0]  # that is what was asked for

    @given(
        sizes=st.lists(st.integers(0, 40), min_size=1, max_size=3),
        ratios=st.lists(st.floats(0.0, 3.0), min_size=3, max_size=3),
        totals=st.lists(st.integers(1, 20), min_size=1, max_size=30),
    )
    def test_samples_on_top_are_those_asked_for(self, sizes: list[int], ratios: list[float], totals: list[int]) -> None:
        planner, _ = memory_planner(*[max(size, 60) for size in sizes])
        additional = np.array([0.0, *ratios[: len(sizes)]])
        weights = np.array([1.0, *[0.0] * len(sizes)])
        wanted, got = np.zeros(len(weights)), np.zeros(len(weights))
        for step, total in enumerate(totals):
            shares, available = planner.shares(weights, 0.0)
            counts, _ = planner.draw(shares, available, total, step, additional)
            assert counts[0] == total
            wanted[1:] += additional[1:] * total
            got[1:] += counts[1:]
            assert (np.abs(got - wanted) < 1.0 + 1e-6).all()


def test_a_stream_beyond_a_lowered_max_epochs_gives_nothing_more() -> None:
    before = Planner([Stream("a", range(10), max_epochs=3), Stream("b", range(10))], 0)
    before.positions[0] = 25
    after = Planner([Stream("a", range(10), max_epochs=2), Stream("b", range(10))], 0)
    after.load_state_dict(before.state_dict())
    assert draw(after, [0.5, 0.5], 4) == [0, 4]
