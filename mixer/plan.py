"""The plan of one update: the same on every rank, and each rank's share of it."""

import functools
import hashlib
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
Int64Array = NDArray[np.int64]


@dataclass(frozen=True)
class Plan:
    """Which samples an update consists of, over all ranks.

    The samples stand in one list, stream after stream; sample `i` of it belongs to rank `i mod W`.

    Args:
        step: Index of the update, from 0.
        counts: int64 `[num_streams]`: samples of each stream.
        starts: int64 `[num_streams]`: position of each stream's first sample in that stream.
        weights: `[num_streams]`: the shares that the counts were apportioned by; they sum to 1.
        policy_weights: `[num_streams]`: what the policy, or the user, had decided.
        loss_weights: `[num_streams]` or `None`: factors on the streams' losses.
        staleness: Number of updates that were done when the weights were decided upon but not seen by the policy.
    """

    step: int
    counts: Int64Array
    starts: Int64Array
    weights: FloatArray
    policy_weights: FloatArray
    loss_weights: FloatArray | None
    staleness: int

    @functools.cached_property
    def total(self) -> int:
        """Number of samples of the update."""
        return int(self.counts.sum())

    def rank_ranges(self, rank: int, world_size: int) -> list[tuple[int, range]]:
        """Gives one rank's samples, stream by stream.

        Args:
            rank: The rank.
            world_size: Number of ranks.

        Returns:
            For each stream that the rank has samples of, in order: its id and the positions of those samples in it.
        """
        ranges, begin = [], 0
        for stream_id, (count, start) in enumerate(zip(self.counts.tolist(), self.starts.tolist(), strict=True)):
            first = (rank - begin) % world_size
            if first < count:
                ranges.append((stream_id, range(start + first, start + count, world_size)))
            begin += count
        return ranges

    def rank_positions(self, rank: int, world_size: int) -> tuple[Int64Array, Int64Array]:
        """Gives one rank's samples in one vectorised call, without listing those of the others.

        Args:
            rank: The rank.
            world_size: Number of ranks.

        Returns:
            int64 `[count]` each: the stream of each sample, ascending, and its position in that stream.
        """
        ends = np.cumsum(self.counts)
        places = np.arange(rank, int(ends[-1]), world_size)
        stream_ids = np.searchsorted(ends, places, side="right")
        return stream_ids, places + (self.starts + self.counts - ends)[stream_ids]

    def fingerprint(self) -> int:
        """Gives a 48-bit hash of the plan, by which ranks find out that they disagree.

        Returns:
            A non-negative integer below 2^48.
        """
        digest = hashlib.blake2b(digest_size=6)
        loss_weights = self.weights if self.loss_weights is None else self.loss_weights
        for array in (np.int64(self.step), self.counts, self.starts, self.weights, loss_weights):
            digest.update(array.tobytes())
        return int.from_bytes(digest.digest(), "little")


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


def split_mixed(plan: Plan, rank: int, world_size: int, max_size: int) -> list[MicroBatchSlice]:
    """Cuts a rank's share into micro-batches, as many on every rank.

    Args:
        plan: The plan.
        rank: The rank.
        world_size: Number of ranks.
        max_size: Most samples of a micro-batch.

    Returns:
        The slices, full ones first.
    """
    return _split(0, len(range(rank, plan.total, world_size)), -(-plan.total // world_size), max_size, -1)


def split_by_stream(plan: Plan, rank: int, world_size: int, max_size: int) -> list[MicroBatchSlice]:
    """Cuts a rank's share into micro-batches of one stream each, as many of each stream on every rank.

    Args:
        plan: The plan.
        rank: The rank.
        world_size: Number of ranks.
        max_size: Most samples of a micro-batch.

    Returns:
        The slices, stream after stream.
    """
    slices: list[MicroBatchSlice] = []
    begin = done = 0
    for stream_id, count in enumerate(plan.counts.tolist()):
        own = len(range((rank - begin) % world_size, count, world_size))
        slices += _split(done, done + own, -(-count // world_size), max_size, stream_id)
        begin, done = begin + count, done + own
    return slices


def _split(start: int, stop: int, most_on_a_rank: int, max_size: int, stream_id: int) -> list[MicroBatchSlice]:
    return [
        MicroBatchSlice(min(start + offset, stop), min(start + offset + max_size, stop), stream_id)
        for offset in range(0, most_on_a_rank, max_size)
    ]
