"""Splits a rank's samples of a step into micro-batches, equally many on every rank."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from mixer.utils.arrays import BoolArray, Int64Array

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


def split_evenly(
    counts: Int64Array,
    own_counts: Int64Array,
    are_alone: BoolArray | None,
    world_size: int,
    max_size: int,
    most_on_a_rank: MostOnARank = deal_evenly,
) -> list[MicroBatchSlice]:
    """Splits a rank's samples into micro-batches, equally many on every rank, full ones first.

    Args:
        counts: int64 `[num_streams]`: samples of the step over all ranks.
        own_counts: int64 `[num_streams]`: samples of this rank.
        are_alone: bool `[num_streams]`: streams with separate micro-batches; those come first, in order. `None` for
            none.
        world_size: Number of ranks.
        max_size: Maximum samples per micro-batch.
        most_on_a_rank: Maximum samples per rank, given the total and the number of ranks.
    """
    alone = [] if are_alone is None else np.flatnonzero(are_alone).tolist()
    all_counts, all_own = counts.tolist(), own_counts.tolist()
    parts = [(number, all_counts[number], all_own[number]) for number in alone]
    num_mixed = sum(all_counts) - sum(count for _, count, _ in parts)
    parts.append((-1, num_mixed, sum(all_own) - sum(own for _, _, own in parts)))
    slices: list[MicroBatchSlice] = []
    start = 0
    for stream_id, count, own in parts:
        stop = start + own
        places = range(start, start + most_on_a_rank(count, world_size), max_size)
        slices += [MicroBatchSlice(min(place, stop), min(place + max_size, stop), stream_id) for place in places]
        start = stop
    return slices
