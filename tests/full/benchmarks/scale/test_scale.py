import numpy as np
import pytest

from benchmarks.scale.limits import NUM_SAMPLES, drift, summed_message, whole_run
from benchmarks.scale.planning import a_plan
from mixer.mixture.permutation import Order
from mixer.mixture.sharding import rank_samples

NUM_STREAMS, WORLD_SIZE, BATCH_SIZE = 10_000, 4_096, 65_536


def test_a_pass_over_1e13_samples_takes_each_once_and_keeps_every_share_within_a_sample() -> None:
    mixing, worst = whole_run(batch_size=2**31 - 1)
    assert mixing.seen.tolist() == [NUM_SAMPLES - 10**12 - 10**7 - 1, 10**12, 10**7, 1]
    assert worst <= 1.0


def test_shares_of_ranks_are_disjoint_parts_of_one_plan_and_of_equal_size() -> None:
    mixing, plan = a_plan(NUM_STREAMS, BATCH_SIZE, NUM_SAMPLES)
    assert plan.total == BATCH_SIZE
    ranks = [0, 1, 2_047, *range(64, 4_096, 97), 4_094, 4_095]
    parts = [np.stack(rank_samples(plan, rank, WORLD_SIZE)) for rank in ranks]
    assert {part.shape[1] for part in parts} == {BATCH_SIZE // WORLD_SIZE}
    ids, positions = together = np.concatenate(parts, axis=1)
    assert len(np.unique(together, axis=1).T) == len(ids)
    offsets = positions - plan.starts[ids]
    assert ((offsets >= 0) & (offsets < plan.counts[ids])).all()
    for part in mixing.planner.rank_share(plan, 4_095, WORLD_SIZE):
        stream = mixing.planner.streams[part.stream_id]
        order = Order(stream.num_samples, stream.order_key(0))
        assert part.indices.tolist() == [int(order.indices(int(position), 1)[0]) for position in part.positions]


@pytest.mark.parametrize("length", [NUM_SAMPLES, NUM_SAMPLES + 1, 2**53 + 1, 2**62 - 1])
def test_the_order_of_a_huge_stream_gives_different_indices_within_it(length: int) -> None:
    indices = np.concatenate([Order(length, 3).indices(start, 2_000) for start in (0, length // 2, length - 2_000)])
    assert indices.min() >= 0
    assert indices.max() < length
    assert len(np.unique(indices)) == len(indices)


@pytest.mark.parametrize("world_size", [2, 4_096, 2**15])
def test_messages_of_many_ranks_add_up_without_overflow(world_size: int) -> None:
    assert summed_message(world_size, tokens=2**37) == world_size * 2**37


def test_what_streams_are_owed_adds_up_to_nothing_after_a_trillion_samples() -> None:
    assert drift(num_steps=1_000, num_streams=100) < 0.1
