"""How a rank's samples of an update are cut into micro-batches, as many on every rank."""

from collections.abc import Sequence
from dataclasses import dataclass

from mixer.plan import Plan


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


def split_mixed(plan: Plan, num_own: int, world_size: int, max_size: int) -> list[MicroBatchSlice]:
    """Cuts a rank's share into micro-batches, as many on every rank.

    Args:
        plan: The plan.
        num_own: Number of samples that this rank has of it.
        world_size: Number of ranks.
        max_size: Most samples of a micro-batch.

    Returns:
        The slices, full ones first.
    """
    return _split(0, num_own, -(-plan.total // world_size), max_size, -1)


def split_by_stream(plan: Plan, own_counts: Sequence[int], world_size: int, max_size: int) -> list[MicroBatchSlice]:
    """Cuts a rank's share into micro-batches of one stream each, as many of each stream on every rank.

    Args:
        plan: The plan.
        own_counts: `[num_streams]`: samples of each stream that this rank has.
        world_size: Number of ranks.
        max_size: Most samples of a micro-batch.

    Returns:
        The slices, stream after stream.
    """
    slices: list[MicroBatchSlice] = []
    done = 0
    for stream_id, (count, own) in enumerate(zip(plan.counts.tolist(), own_counts, strict=True)):
        slices += _split(done, done + own, -(-count // world_size), max_size, stream_id)
        done += own
    return slices


def _split(start: int, stop: int, most_on_a_rank: int, max_size: int, stream_id: int) -> list[MicroBatchSlice]:
    return [
        MicroBatchSlice(min(start + offset, stop), min(start + offset + max_size, stop), stream_id)
        for offset in range(0, most_on_a_rank, max_size)
    ]
