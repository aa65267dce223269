"""The plan of one step, identical on every rank, and which of its samples a rank has.

Every position of a stream has a home rank, independent of the counts of any step. So the right rank can prefetch
samples of coming steps before their counts are known; if samples were distributed anew in each step, they would change
ranks with every change of the mixture.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from mixer.mixture.cursors import IterableCursor, ShuffledOrder
from mixer.mixture.permutation import Permutation
from mixer.mixture.stream import Cursor
from mixer.utils.arrays import BoolArray, FloatArray, Int64Array, whole_sum

_FEW_STREAMS = 32  # above, all streams' positions are mapped in one vectorised call


@dataclass(frozen=True)
class StepPlan:
    """Samples of a step over all ranks; `rank_samples` assigns them to ranks.

    Args:
        step: Number of the step, from 1: the Trainer's `global_step` once it is done.
        counts: int64 `[num_streams]`: samples of each stream.
        starts: int64 `[num_streams]`: position of each stream's first sample in that stream.
        weights: `[num_streams]`: apportioned shares; they sum to 1.
        policy_weights: `[num_streams]`: weights set by the policy or the user.
        loss_weights: `[num_streams]` or `None`: factors on the streams' losses.
        batch_size: Requested samples; fewer are planned at the end of an epoch or of the streams.
        staleness: Steps done but not yet observed by the policy when it set the weights.
        are_additional: bool `[num_streams]`: streams whose samples come on top of the batch size and do not advance the
            clock; `None` for none.
    """

    step: int
    counts: Int64Array
    starts: Int64Array
    weights: FloatArray
    policy_weights: FloatArray
    loss_weights: FloatArray | None
    batch_size: int
    staleness: int
    are_additional: BoolArray | None = None

    @property
    def index(self) -> int:
        """Number of steps before this one; keys random draws."""
        return self.step - 1

    @property
    def total(self) -> int:
        """Number of samples of the step."""
        return whole_sum(self.counts)

    def clocked(self, by_stream: Int64Array) -> int:
        """Sums a per-stream number, such as `counts`, over the streams that advance the clock."""
        if self.are_additional is None:
            return whole_sum(by_stream)
        return whole_sum(by_stream[~self.are_additional])

    @property
    def first_stream(self) -> int:
        """First stream with samples in the step."""
        return int(np.argmax(self.counts > 0))

    def shares(self, lengths: FloatArray | None) -> FloatArray:
        """Returns the shares in tokens or labels, `[num_streams]`, given those a sample; `None` counts samples."""
        return self.weights.copy() if lengths is None else self.weights * lengths / (self.weights @ lengths)

    def only(self, are_in: BoolArray) -> "StepPlan":
        """Returns the plan restricted to the streams in `are_in`, bool `[num_streams]`."""
        return replace(self, counts=np.where(are_in, self.counts, 0))

    def fingerprint(self) -> int:
        """Returns a 48-bit hash of the plan, by which ranks detect that they disagree."""
        digest = hashlib.blake2b(digest_size=6)
        loss_weights = self.weights if self.loss_weights is None else self.loss_weights
        for array in (np.int64(self.step), self.counts, self.starts, self.weights, loss_weights):
            digest.update(array.tobytes())
        return int.from_bytes(digest.digest(), "little")


class StreamShare(NamedTuple):
    """A rank's samples of one stream.

    Args:
        stream_id: Stream.
        positions: `[count]`, ascending: positions in the stream.
        indices: int64 `[count]`: their indices in the dataset.
    """

    stream_id: int
    positions: range | Int64Array
    indices: Int64Array


def ids_of(share: Sequence[StreamShare]) -> Int64Array:
    """Returns the stream of each sample of a share, int64 `[num_samples]`, ascending."""
    ids, counts = [part.stream_id for part in share], [len(part.indices) for part in share]
    return np.array(ids, dtype=np.int64).repeat(np.array(counts, dtype=np.int64))


def positions_of(share: Sequence[StreamShare]) -> Int64Array:
    """Returns each sample's position in its stream, int64 `[num_samples]`."""
    places: list[int] = []
    for _, positions, _ in share:
        places += positions if isinstance(positions, range) else positions.tolist()
    return np.array(places, dtype=np.int64)


def indices_of(share: Sequence[StreamShare]) -> Int64Array:
    """Returns each sample's index in its stream's dataset, int64 `[num_samples]`."""
    return np.concatenate([part.indices for part in share]) if share else np.zeros(0, dtype=np.int64)


class RankLookup:
    """Looks up a rank's samples.

    Args:
        cursors: Cursors of all streams, in order.
    """

    def __init__(self, cursors: Sequence[Cursor | ShuffledOrder]):
        self._cursors = cursors
        ordered = [cursor for cursor in cursors if isinstance(cursor, ShuffledOrder)]
        self._has_rows = any(isinstance(cursor, IterableCursor) for cursor in cursors)
        self._order: Permutation | None = None
        # Each stream's number among the permuted ones; the others, buffers and rows, look up by themselves.
        is_ordered = np.array([isinstance(cursor, ShuffledOrder) for cursor in cursors], dtype=bool)
        self._numbers = np.where(is_ordered, np.cumsum(is_ordered) - 1, -1)
        if len(ordered) > _FEW_STREAMS and not any(cursor.group_size for cursor in ordered):
            self._order = Permutation(
                [d.length for d in ordered], [d.key for d in ordered], [d.shuffle for d in ordered]
            )

    def share(self, plan: StepPlan, rank: int, world_size: int, is_balanced: bool = True) -> list[StreamShare]:
        """Returns a rank's samples of a plan, for streams in order that have any.

        Args:
            plan: Plan of the step.
            rank: The rank.
            world_size: Number of ranks.
            is_balanced: See `rank_samples`.
        """
        if world_size == 1 and self._order is None:
            spans = zip(plan.starts.tolist(), plan.counts.tolist(), strict=True)
            return [
                StreamShare(k, own := range(start, start + count), self._cursors[k].references(own))
                for k, (start, count) in enumerate(spans)
                if count
            ]
        if self._has_rows:  # ranks cannot exchange rows
            stream_ids, positions = dealt_samples(plan, rank, world_size)
        else:
            stream_ids, positions = rank_samples(plan, rank, world_size, is_balanced)
        if not len(stream_ids):
            return []
        present, starts = np.unique(stream_ids, return_index=True)
        parts = list(zip(present.tolist(), np.split(positions, starts[1:]), strict=True))
        if self._order is None:
            return [StreamShare(k, own, self._cursors[k].references(own)) for k, own in parts]
        numbers, indices = self._numbers[stream_ids], np.empty(len(positions), dtype=np.int64)
        known = numbers >= 0
        indices[known] = self._order.map_positions(numbers[known], positions[known])
        return [
            StreamShare(k, own, mapped if self._numbers[k] >= 0 else self._cursors[k].references(own))
            for (k, own), mapped in zip(parts, np.split(indices, starts[1:]), strict=True)
        ]


def rank_samples(plan: StepPlan, rank: int, world_size: int, is_balanced: bool = True) -> tuple[Int64Array, Int64Array]:
    """Returns one rank's samples of a step, without listing those of other ranks.

    The home of position `p` of stream `k` is rank `(p + k) mod W`. Ranks with more samples than others give their last
    ones away.

    Args:
        plan: Plan of the step.
        rank: The rank.
        world_size: Number of ranks, `W`.
        is_balanced: Whether to rebalance, so that rank sizes differ by at most one sample. Otherwise that holds per
            stream only.

    Returns:
        int64 `[count]` each: stream of each sample, ascending, and its position in that stream, ascending in each.
    """
    homes = HomeShards(plan, world_size)
    own = homes.samples(rank)
    if not is_balanced:
        return own[0], own[1]
    surplus = homes.surplus()
    if surplus[rank] > 0:
        own = own[:, : own.shape[1] - surplus[rank]]
    elif surplus[rank] < 0:
        own = np.concatenate([own, homes.rebalanced(surplus, rank)], axis=1)
        own = own[:, np.lexsort((own[1], own[0]))]
    return own[0], own[1]


def dealt_samples(plan: StepPlan, rank: int, world_size: int) -> tuple[Int64Array, Int64Array]:
    """Returns one rank's samples without homes: those of step `t` are dealt in turn, starting at rank `t - 1`.

    Rank sizes differ by at most one sample, per stream and in total. The starting rank rotates, so that all ranks
    advance equally in a stream that is sharded over them.

    Args:
        plan: Plan of the step.
        rank: The rank.
        world_size: Number of ranks, `W`.

    Returns:
        int64 `[count]` each: stream of each sample, ascending, and its position in that stream.
    """
    ends = np.cumsum(plan.counts)
    places = np.arange((rank - plan.index) % world_size, int(ends[-1]), world_size)
    stream_ids = np.searchsorted(ends, places, side="right")
    return stream_ids, places + (plan.starts + plan.counts - ends)[stream_ids]


class HomeShards:
    """Samples of a plan by home rank; the cost is one per stream and one per rank, for any batch size."""

    def __init__(self, plan: StepPlan, world_size: int):
        self._starts, self._world_size = plan.starts, world_size
        self._rounds, self._rest = np.divmod(plan.counts, world_size)
        self._first_home = (plan.starts + np.arange(len(plan.counts))) % world_size

    def samples(self, rank: int) -> Int64Array:
        """Returns a rank's home samples, int64 `[2, count]`: streams and positions."""
        offsets = (rank - self._first_home) % self._world_size
        counts = self._rounds + (offsets < self._rest)
        ids = np.repeat(np.arange(len(counts)), counts)
        places = np.arange(len(ids)) - np.repeat(np.cumsum(counts) - counts, counts)
        return np.stack([ids, (self._starts + offsets)[ids] + self._world_size * places])

    def surplus(self) -> Int64Array:
        """Returns each rank's surplus of samples, int64 `[world_size]`; it sums to 0."""
        size = self._world_size
        # Each stream's incomplete round starts on its first home and continues over the ranks, possibly wrapping.
        edges = np.bincount(self._first_home, minlength=2 * size)
        edges -= np.bincount(self._first_home + self._rest, minlength=2 * size)
        covered = np.cumsum(edges)
        loads = covered[:size] + covered[size:] + self._rounds.sum()
        share, extra = divmod(int(loads.sum()), size)
        targets = np.full(size, share)
        targets[np.argsort(-loads, kind="stable")[:extra]] += 1
        surplus: Int64Array = loads - targets
        return surplus

    def rebalanced(self, surplus: Int64Array, rank: int) -> Int64Array:
        """Returns the samples that a rank with a shortage receives from the others."""
        start = int(-np.minimum(surplus[:rank], 0).sum())
        stop = start - int(surplus[rank])
        givers = np.flatnonzero(surplus > 0)
        ends = np.cumsum(surplus[givers])
        first, last = np.searchsorted(ends, start, side="right"), np.searchsorted(ends, stop)
        parts = []
        for giver, end in zip(givers[first : last + 1].tolist(), ends[first : last + 1].tolist(), strict=True):
            count = int(surplus[giver])
            begin = end - count
            excess = self.samples(giver)[:, -count:]
            parts.append(excess[:, max(start - begin, 0) : stop - begin])
        return np.concatenate(parts, axis=1)
