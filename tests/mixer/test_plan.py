from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mixer.plan import Plan, split_by_stream, split_mixed

WORLD_SIZES = range(1, 9)

count_lists = st.lists(st.integers(0, 40), min_size=1, max_size=7).filter(any)
world_sizes = st.integers(1, 8)
max_sizes = st.integers(1, 20)


def make_plan(counts: list[int], step: int = 3) -> Plan:
    array = np.array(counts, dtype=np.int64)
    return Plan(
        step=step,
        counts=array,
        starts=1_000 * np.arange(len(counts), dtype=np.int64) + 7,
        weights=array / array.sum(),
        policy_weights=array / array.sum(),
        loss_weights=None,
        staleness=0,
    )


def samples(plan: Plan, rank: int, world_size: int) -> list[tuple[int, int]]:
    stream_ids, positions = plan.rank_positions(rank, world_size)
    return list(zip(stream_ids.tolist(), positions.tolist(), strict=True))


class TestRankShare:
    def test_one_rank_has_the_whole_list(self) -> None:
        assert samples(make_plan([2, 0, 3]), 0, 1) == [(0, 7), (0, 8), (2, 2007), (2, 2008), (2, 2009)]

    def test_rank_r_has_every_wth_item(self) -> None:
        assert samples(make_plan([2, 0, 3]), 1, 2) == [(0, 8), (2, 2008)]

    @given(counts=count_lists, world_size=world_sizes)
    def test_the_ranks_together_have_each_sample_once(self, counts: list[int], world_size: int) -> None:
        plan = make_plan(counts)
        whole = samples(plan, 0, 1)
        shares = [samples(plan, rank, world_size) for rank in range(world_size)]
        assert [shares[place % world_size][place // world_size] for place in range(len(whole))] == whole
        assert sum(len(share) for share in shares) == plan.total == len(set(whole))

    @given(counts=count_lists, world_size=world_sizes)
    def test_no_rank_has_two_samples_more_than_another(self, counts: list[int], world_size: int) -> None:
        sizes = [len(samples(make_plan(counts), rank, world_size)) for rank in range(world_size)]
        assert max(sizes) - min(sizes) <= 1

    @given(counts=count_lists, world_size=world_sizes)
    def test_a_share_is_ascending(self, counts: list[int], world_size: int) -> None:
        for rank in range(world_size):
            share = samples(make_plan(counts), rank, world_size)
            assert share == sorted(share)

    @given(counts=count_lists, world_size=world_sizes)
    def test_stream_by_stream_it_is_the_same(self, counts: list[int], world_size: int) -> None:
        plan = make_plan(counts)
        for rank in range(world_size):
            ranges = plan.rank_ranges(rank, world_size)
            listed = [(stream_id, position) for stream_id, positions in ranges for position in positions]
            assert listed == samples(plan, rank, world_size)
            assert all(len(positions) > 0 for _, positions in ranges)

    def test_a_rank_may_have_nothing(self) -> None:
        assert samples(make_plan([1, 1]), 5, 8) == []

    def test_positions_of_a_very_long_run_are_exact(self) -> None:
        plan = replace(make_plan([2, 2]), starts=np.array([2**61, 2**61 + 1], dtype=np.int64))
        assert samples(plan, 0, 1)[-1] == (1, 2**61 + 2)


@pytest.mark.parametrize("split", [split_mixed, split_by_stream])
class TestSlices:
    @given(counts=count_lists, world_size=world_sizes, max_size=max_sizes)
    def test_they_cut_the_share_of_the_rank_without_gap_or_overlap(self, split, counts, world_size, max_size) -> None:
        plan = make_plan(counts)
        for rank in range(world_size):
            slices = split(plan, rank, world_size, max_size)
            own = [place for part in slices for place in range(part.start, part.stop)]
            assert own == list(range(len(samples(plan, rank, world_size))))

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
            share = samples(plan, rank, world_size)
            for part in split(plan, rank, world_size, max_size):
                found += share[part.start : part.stop]
        assert sorted(found) == samples(plan, 0, 1)


class TestSplitMixed:
    @given(counts=count_lists, world_size=world_sizes, max_size=max_sizes)
    def test_there_are_as_few_as_can_be(self, counts: list[int], world_size: int, max_size: int) -> None:
        plan = make_plan(counts)
        largest_share = -(-plan.total // world_size)
        assert len(split_mixed(plan, 0, world_size, max_size)) == -(-largest_share // max_size)

    def test_full_ones_come_first(self) -> None:
        parts = split_mixed(make_plan([5, 5]), 0, 1, 4)
        assert [(part.start, part.stop, part.stream_id) for part in parts] == [(0, 4, -1), (4, 8, -1), (8, 10, -1)]

    def test_a_rank_without_samples_has_empty_ones(self) -> None:
        assert [(part.start, part.stop) for part in split_mixed(make_plan([1]), 1, 2, 4)] == [(0, 0)]


class TestSplitByStream:
    @given(counts=count_lists, world_size=world_sizes, max_size=max_sizes)
    def test_each_holds_samples_of_its_stream_only(self, counts: list[int], world_size: int, max_size: int) -> None:
        plan = make_plan(counts)
        for rank in range(world_size):
            stream_ids, _ = plan.rank_positions(rank, world_size)
            for part in split_by_stream(plan, rank, world_size, max_size):
                assert set(stream_ids[part.start : part.stop].tolist()) <= {part.stream_id}

    @given(counts=count_lists, world_size=world_sizes, max_size=max_sizes)
    def test_each_is_full_on_some_rank_or_the_last_of_its_stream(self, counts, world_size, max_size) -> None:
        plan = make_plan(counts)
        slices = [split_by_stream(plan, rank, world_size, max_size) for rank in range(world_size)]
        for parts in zip(*slices, strict=True):
            assert max(part.stop - part.start for part in parts) > 0

    def test_a_stream_without_samples_has_none(self) -> None:
        parts = split_by_stream(make_plan([3, 0, 2]), 0, 1, 2)
        assert [(part.start, part.stop, part.stream_id) for part in parts] == [(0, 2, 0), (2, 3, 0), (3, 5, 2)]


class TestFingerprint:
    def test_it_fits_into_48_bits(self) -> None:
        assert all(0 <= make_plan([1, 2], step).fingerprint() < 2**48 for step in range(200))

    def test_the_same_plan_has_the_same(self) -> None:
        assert make_plan([1, 2]).fingerprint() == make_plan([1, 2]).fingerprint()

    @pytest.mark.parametrize(
        "change",
        [
            {"step": 4},
            {"counts": np.array([2, 1])},
            {"starts": np.array([7, 1_008])},
            {"weights": np.array([1 / 3, np.nextafter(2 / 3, 1)])},
            {"loss_weights": np.array([1.0, 2.0])},
        ],
        ids=lambda change: next(iter(change)),
    )
    def test_it_sees_every_difference(self, change: dict) -> None:
        plan = make_plan([1, 2])
        assert replace(plan, **change).fingerprint() != plan.fingerprint()

    def test_plans_of_many_steps_do_not_collide(self) -> None:
        assert len({make_plan([1, 2], step).fingerprint() for step in range(2_000)}) == 2_000

    @pytest.mark.parametrize("world_size", WORLD_SIZES)
    def test_asking_for_a_share_does_not_change_it(self, world_size: int) -> None:
        plan = make_plan([4, 5, 6])
        before = plan.fingerprint()
        plan.rank_positions(0, world_size)
        assert plan.fingerprint() == before
