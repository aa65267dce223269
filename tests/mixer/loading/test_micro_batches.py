import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mixer.loading.micro_batches import MicroBatchSlice, split_evenly
from mixer.mixture.plan import Plan
from tests.mixer.plans import all_samples, make_plan, samples_of


def split(plan: Plan, rank: int, world_size: int, max_size: int, by_stream: bool) -> list[MicroBatchSlice]:
    ids = [stream_id for stream_id, _ in samples_of(plan, rank, world_size, not by_stream)]
    own = np.bincount(np.array(ids, np.int64), minlength=len(plan.counts))
    return split_evenly(plan.counts, own, np.full(len(plan.counts), by_stream), world_size, max_size)


@given(
    counts=st.lists(st.integers(0, 40), min_size=1, max_size=7).filter(any),
    world_size=st.integers(1, 8),
    max_size=st.integers(1, 20),
    by_stream=st.booleans(),
)
def test_slices_cut_the_share_of_each_rank_into_as_many_parts_as_those_of_the_others(
    counts: list[int], world_size: int, max_size: int, by_stream: bool
) -> None:
    plan, streams, together = make_plan(counts), [], []
    cuts = [split(plan, rank, world_size, max_size, by_stream) for rank in range(world_size)]
    for rank, parts in enumerate(cuts):
        share = samples_of(plan, rank, world_size, not by_stream)
        assert [place for part in parts for place in range(part.start, part.stop)] == list(range(len(share)))
        streams.append([part.stream_id for part in parts])
        for part in parts:
            assert 0 <= part.stop - part.start <= max_size
            together += share[part.start : part.stop]
            if by_stream:
                assert {stream_id for stream_id, _ in share[part.start : part.stop]} <= {part.stream_id}
    assert streams == [streams[0]] * world_size
    assert sorted(together) == all_samples(plan)
    if by_stream:  # each is there for some rank
        assert all(max(part.stop - part.start for part in parts) > 0 for parts in zip(*cuts, strict=True))
    else:  # there are as few as can be
        assert len(cuts[0]) == math.ceil(math.ceil(plan.total / world_size) / max_size)


@pytest.mark.parametrize(
    ("counts", "max_size", "by_stream", "expected"),
    [
        ([5, 5], 4, False, [(0, 4, -1), (4, 8, -1), (8, 10, -1)]),
        ([3, 0, 2], 2, True, [(0, 2, 0), (2, 3, 0), (3, 5, 2)]),
    ],
)
def test_full_ones_come_first_and_a_stream_without_samples_has_none(
    counts: list[int], max_size: int, by_stream: bool, expected: list[tuple[int, int, int]]
) -> None:
    parts = split(make_plan(counts), 0, 1, max_size, by_stream)
    assert [(part.start, part.stop, part.stream_id) for part in parts] == expected


def test_a_rank_without_samples_has_empty_ones() -> None:
    counts, none = np.array([1]), np.array([0])
    assert split_evenly(counts, none, counts < 0, 2, 4) == [MicroBatchSlice(0, 0)]
