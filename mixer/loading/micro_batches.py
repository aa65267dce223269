"""Splits a rank's samples of a step into micro-batches, equally many on every rank."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mixer.mixture.plan import Plan

MostOnARank = Callable[[int, int], int]


@dataclass(frozen=True)
class MicroBatchSlice:
    """One micro-batch as a slice of a rank's samples.

    Args:
        start: First sample.
        stop: End of the slice; equal to `start` if the rank has no sample left.
        stream_id: Stream of all its samples; -1 if mixed.
    """

    start: int
    stop: int
    stream_id: int = -1


def deal_evenly(count: int, world_size: int) -> int:
    """Returns the maximum samples per rank when `count` samples are distributed evenly."""
    return -(-count // world_size)


def split_mixed(
    plan: Plan, num_own: int, world_size: int, max_size: int, most_on_a_rank: MostOnARank = deal_evenly
) -> list[MicroBatchSlice]:
    """Splits a rank's share into mixed micro-batches, equally many on every rank, full ones first.

    Args:
        plan: Plan of the step.
        num_own: Samples of this rank.
        world_size: Number of ranks.
        max_size: Maximum samples per micro-batch.
        most_on_a_rank: Maximum samples per rank, given the total and the number of ranks.
    """
    return _split(0, num_own, most_on_a_rank(plan.total, world_size), max_size, -1)


def split_by_stream(
    plan: Plan,
    own_counts: Sequence[int],
    world_size: int,
    max_size: int,
    most_on_a_rank: MostOnARank = deal_evenly,
) -> list[MicroBatchSlice]:
    """Splits a rank's share into micro-batches of one stream each, equally many per stream on every rank.

    Args:
        plan: Plan of the step.
        own_counts: `[num_streams]`: samples of each stream on this rank.
        world_size: Number of ranks.
        max_size: Maximum samples per micro-batch.
        most_on_a_rank: Maximum samples per rank, given the total and the number of ranks.
    """
    slices: list[MicroBatchSlice] = []
    done = 0
    for stream_id, (count, own) in enumerate(zip(plan.counts.tolist(), own_counts, strict=True)):
        slices += _split(done, done + own, most_on_a_rank(count, world_size), max_size, stream_id)
        done += own
    return slices


def _split(start: int, stop: int, most_on_a_rank: int, max_size: int, stream_id: int) -> list[MicroBatchSlice]:
    return [
        MicroBatchSlice(min(start + offset, stop), min(start + offset + max_size, stop), stream_id)
        for offset in range(0, most_on_a_rank, max_size)
    ]
