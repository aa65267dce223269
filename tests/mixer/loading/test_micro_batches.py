from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mixer.loading.micro_batches import MicroBatchSlice, split_evenly
from mixer.mixture.plan import Plan
from tests.mixer.plans import all_samples, make_plan, samples_of

count_lists = st.lists(st.integers(0, 40), min_size=1, max_size=7).filter(any)
world_sizes = st.integers(1, 8)
max_sizes = st.integers(1, 20)

Split = Callable[[Plan, int, int, int], list[MicroBatchSlice]]


def own_counts(plan: Plan, rank: int, world_size: int, is_balanced: bool) -> np.ndarray:
    ids = [stream_id for stream_id, _ in samples_of(plan, rank, world_size, is_balanced)]
    return np.bincount(np.array(ids, np.int64), minlength=len(plan.counts))


def mixed(plan: Plan, rank: int, world_size: int, max_size: int) -> list[MicroBatchSlice]:
    return split_evenly(
        plan.counts,
        own_counts(plan, rank, world_size, True),
        np.zeros(len(plan.counts), np.bool_),
        world_size,
        max_size,
    )


def by_stream(plan: Plan, rank: int, world_size: int, max_size: int) -> list[MicroBatchSlice]:
    return split_evenly(
        plan.counts,
        own_counts(plan, rank, world_size, False),
        np.ones(len(plan.counts), np.bool_),
        world_size,
        max_size,
    )


@pytest.mark.parametrize("split", [mixed, by_stream])
class TestSlices:
    @given(counts=count_lists, world_size=world_sizes, max_size=max_sizes)
    def test_they_cut_the_share_of_the_rank_without_gap_or_overlap(self, split, counts, world_size, max_size) -> None:
        plan = make_plan(counts)
        for rank in range(world_size):
            slices = split(plan, rank, world_size, max_size)
            own = [place for part in slices for place in range(part.start, part.stop)]
            assert own == list(range(len(samples_of(plan, rank, world_size, split is mixed))))

    @given(counts=count_lists, world_size=world_sizes, max_size=max_sizes)
    def test_every_rank_has_as_many(self, split, counts, world_size, max_size) -> None:
        plan = make_plan(counts)
        streams = [[part.stream_id for part in split(plan, rank, world_size, max_size)] for rank in range(world_size)]
        assert streams == [streams[0]] * world_size

    @given(counts=count_lists, world_size=world_sizes, max_size=max_sizes)
    def test_none_is_larger_than_the_cap(self, split, counts, world_size, max_size) -> None:
        for rank in range(world_size):
            for part in split(make_plan(counts), rank, world_size, max_size):
                assert 0 <= part.stop - part.start <= max_size

    @given(counts=count_lists, world_size=world_sizes, max_size=max_sizes)
    def test_the_union_over_ranks_is_the_same_batch(self, split, counts, world_size, max_size) -> None:
        plan = make_plan(counts)
        found = []
        for rank in range(world_size):
            share = samples_of(plan, rank, world_size, split is mixed)
            for part in split(plan, rank, world_size, max_size):
                found += share[part.start : part.stop]
        assert sorted(found) == all_samples(plan)


class TestSplitMixed:
    @given(counts=count_lists, world_size=world_sizes, max_size=max_sizes)
    def test_there_are_as_few_as_can_be(self, counts: list[int], world_size: int, max_size: int) -> None:
        plan = make_plan(counts)
        largest_share = -(-plan.total // world_size)
        assert len(mixed(plan, 0, world_size, max_size)) == -(-largest_share // max_size)

    def test_full_ones_come_first(self) -> None:
        parts = mixed(make_plan([5, 5]), 0, 1, 4)
        assert [(part.start, part.stop, part.stream_id) for part in parts] == [(0, 4, -1), (4, 8, -1), (8, 10, -1)]

    def test_a_rank_without_samples_has_empty_ones(self) -> None:
        counts, none = np.array([1]), np.array([0])
        assert split_evenly(counts, none, counts < 0, 2, 4) == [MicroBatchSlice(0, 0)]


class TestSplitByStream:
    @given(counts=count_lists, world_size=world_sizes, max_size=max_sizes)
    def test_each_holds_samples_of_its_stream_only(self, counts: list[int], world_size: int, max_size: int) -> None:
        plan = make_plan(counts)
        for rank in range(world_size):
            share = samples_of(plan, rank, world_size, is_balanced=False)
            for part in by_stream(plan, rank, world_size, max_size):
                assert {stream_id for stream_id, _ in share[part.start : part.stop]} <= {part.stream_id}

    @given(counts=count_lists, world_size=world_sizes, max_size=max_sizes)
    def test_each_is_there_for_some_rank(self, counts, world_size, max_size) -> None:
        plan = make_plan(counts)
        slices = [by_stream(plan, rank, world_size, max_size) for rank in range(world_size)]
        for parts in zip(*slices, strict=True):
            assert max(part.stop - part.start for part in parts) > 0

    def test_a_stream_without_samples_has_none(self) -> None:
        parts = by_stream(make_plan([3, 0, 2]), 0, 1, 2)
        assert [(part.start, part.stop, part.stream_id) for part in parts] == [(0, 2, 0), (2, 3, 0), (3, 5, 2)]
