"""Splits a rank's samples of a step into micro-batches, equally many on every rank."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from mixer.utils.arrays import BoolArray, Int64Array

MostOnARank = Callable[[int, int], int]


class MicroBatchSlice(NamedTuple):
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


def split_part(start: int, own: int, most: int, max_size: int, stream_id: int = -1) -> list[MicroBatchSlice]:
    """Splits a part of a rank's samples into as many micro-batches as the rank with most of it needs.

    Args:
        start: First sample.
        own: Samples of this rank.
        most: Maximum samples per rank.
        max_size: Maximum samples per micro-batch.
        stream_id: Stream of all samples; -1 if mixed.
    """
    stop = start + own
    return [
        MicroBatchSlice(min(place, stop), min(place + max_size, stop), stream_id)
        for place in range(start, start + most, max_size)
    ]


def split_evenly(
    counts: Int64Array,
    own_counts: Int64Array,
    are_alone: BoolArray,
    world_size: int,
    max_size: int,
    most_on_a_rank: MostOnARank = deal_evenly,
) -> list[MicroBatchSlice]:
    """Splits a rank's samples into micro-batches, equally many on every rank, full ones first.

    Args:
        counts: int64 `[num_streams]`: samples of the step over all ranks.
        own_counts: int64 `[num_streams]`: samples of this rank.
        are_alone: bool `[num_streams]`: streams with separate micro-batches; those come first, in order.
        world_size: Number of ranks.
        max_size: Maximum samples per micro-batch.
        most_on_a_rank: Maximum samples per rank, given the total and the number of ranks.
    """
    parts = [(k, int(counts[k]), int(own_counts[k])) for k in np.flatnonzero(are_alone).tolist()]
    parts.append((-1, int(counts[~are_alone].sum()), int(own_counts[~are_alone].sum())))
    slices: list[MicroBatchSlice] = []
    start = 0
    for stream_id, count, own in parts:
        slices += split_part(start, own, most_on_a_rank(count, world_size), max_size, stream_id)
        start += own
    return slices
