import numpy as np
import pytest
from hypothesis import given, strategies as st

from mixer.loading.batching import MicroBatchSlice, parts_of, split_evenly
from mixer.mixture.step_plan import StepPlan
from tests.mixer.plans import all_samples, make_plan, samples_of

count_lists = st.lists(st.integers(0, 40), min_size=1, max_size=7).filter(any)


def split(plan: StepPlan, rank: int, world_size: int, max_size: int, by_stream: bool) -> list[MicroBatchSlice]:
    ids = [stream_id for stream_id, _ in samples_of(plan, rank, world_size, not by_stream)]
    own_counts = np.bincount(np.array(ids, np.int64), minlength=len(plan.counts))
    parts = parts_of(plan.counts, own_counts, np.full(len(plan.counts), by_stream))
    return split_evenly(parts, world_size, max_size)


@pytest.mark.parametrize("by_stream", [False, True])
@given(counts=count_lists, world_size=st.integers(1, 8), max_size=st.integers(1, 20))
def test_ranks_cut_their_shares_into_as_many(by_stream, counts, world_size, max_size) -> None:
    plan, found = make_plan(counts), []
    slices = [split(plan, rank, world_size, max_size, by_stream) for rank in range(world_size)]
    for rank, parts in enumerate(slices):
        share = samples_of(plan, rank, world_size, not by_stream)
        assert [place for part in parts for place in range(part.start, part.stop)] == list(range(len(share)))
        found += [sample for part in parts for sample in share[part.start : part.stop]]
        assert [part.stream_id for part in parts] == [part.stream_id for part in slices[0]]
        for part in parts:
            assert 0 <= part.stop - part.start <= max_size
            if by_stream:
                assert {stream_id for stream_id, _ in share[part.start : part.stop]} <= {part.stream_id}
    assert sorted(found) == all_samples(plan)
    if by_stream:  # each is there for some rank
        assert all(max(part.stop - part.start for part in parts) > 0 for parts in zip(*slices, strict=True))
    else:  # as few as can be
        largest_share = -(-plan.total // world_size)
        assert len(slices[0]) == -(-largest_share // max_size)


def test_full_ones_come_first_a_stream_without_samples_has_none_and_a_rank_without_any_has_empty_ones() -> None:
    full = split(make_plan([5, 5]), 0, 1, 4, by_stream=False)
    assert full == [MicroBatchSlice(0, 4), MicroBatchSlice(4, 8), MicroBatchSlice(8, 10)]
    by_stream = split(make_plan([3, 0, 2]), 0, 1, 2, by_stream=True)
    assert [(part.start, part.stop, part.stream_id) for part in by_stream] == [(0, 2, 0), (2, 3, 0), (3, 5, 2)]
    counts = np.array([1])
    assert split_evenly(parts_of(counts, counts - 1, counts < 0), 2, 4) == [MicroBatchSlice(0, 0)]
