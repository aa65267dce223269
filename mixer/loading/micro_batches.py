"""How a rank's samples of a step are cut into micro-batches, as many on every rank."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mixer.mixture.plan import Plan

MostOnARank = Callable[[int, int], int]


@dataclass(frozen=True)
class MicroBatchSlice:
    """One micro-batch of a rank.

    Args:
        start: Its first sample in the rank's share.
        stop: The sample after its last; equal to `start` where the rank has no sample left.
        stream_id: The stream that it is of, for a micro-batch of one stream only; else -1.
    """

    start: int
    stop: int
    stream_id: int = -1


def deal_evenly(count: int, world_size: int) -> int:
    """Gives how many samples a rank has at most where they are dealt out evenly.

    Args:
        count: Number of samples.
        world_size: Number of ranks.

    Returns:
        The largest number.
    """
    return -(-count // world_size)


def split_mixed(
    plan: Plan, num_own: int, world_size: int, max_size: int, most_on_a_rank: MostOnARank = deal_evenly
) -> list[MicroBatchSlice]:
    """Cuts a rank's share into micro-batches, as many on every rank.

    Args:
        plan: The plan.
        num_own: Number of samples that this rank has of it.
        world_size: Number of ranks.
        max_size: Most samples of a micro-batch.
        most_on_a_rank: How many of so many samples the rank with the most has, where they are not dealt evenly.

    Returns:
        The slices, full ones first.
    """
    return _split(0, num_own, most_on_a_rank(plan.total, world_size), max_size, -1)


def split_by_stream(
    plan: Plan,
    own_counts: Sequence[int],
    world_size: int,
    max_size: int,
    most_on_a_rank: MostOnARank = deal_evenly,
) -> list[MicroBatchSlice]:
    """Cuts a rank's share into micro-batches of one stream each, as many of each stream on every rank.

    Args:
        plan: The plan.
        own_counts: `[num_streams]`: samples of each stream that this rank has.
        world_size: Number of ranks.
        max_size: Most samples of a micro-batch.
        most_on_a_rank: How many of so many samples the rank with the most has, where they are not dealt evenly.

    Returns:
        The slices, stream after stream.
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
