"""Which rank trains on which sample of a step.

Every position of a stream has a home rank that no count of any step can change. What the coming steps need can so
be fetched ahead on the right rank although the counts are not known yet; items dealt out anew in each step would
change ranks with every change of the mixture.
"""

import numpy as np

from mixer.mixture.plan import Plan
from mixer.utils.arrays import Int64Array


def rank_samples(plan: Plan, rank: int, world_size: int, is_balanced: bool = True) -> tuple[Int64Array, Int64Array]:
    """Gives one rank's samples of a step, without listing those of the others.

    Position `p` of stream `k` is at home on rank `(p + k) mod W`. Where ranks would have more samples than others, they
    hand their last ones over.

    Args:
        plan: The plan.
        rank: The rank.
        world_size: Number of ranks, `W`.
        is_balanced: Whether samples are handed over, so that no rank has two more than another. Without, that holds
            for each stream by itself.

    Returns:
        int64 `[count]` each: the stream of each sample, ascending, and its position in that stream, ascending in each.
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


def dealt_samples(plan: Plan, rank: int, world_size: int) -> tuple[Int64Array, Int64Array]:
    """Gives one rank's samples where they have no homes: the samples of step `t` are dealt from rank `t - 1` on.

    Of a stream's samples no rank has two more than another, nor of all of them; which one has more changes from step
    to step, so that all ranks come equally far in a stream whose rows are shared out among them.

    Args:
        plan: The plan.
        rank: The rank.
        world_size: Number of ranks, `W`.

    Returns:
        int64 `[count]` each: the stream of each sample, ascending, and its position in that stream.
    """
    ends = np.cumsum(plan.counts)
    places = np.arange((rank - plan.index) % world_size, int(ends[-1]), world_size)
    stream_ids = np.searchsorted(ends, places, side="right")
    return stream_ids, places + (plan.starts + plan.counts - ends)[stream_ids]


class HomeShards:
    """The samples of a plan by home rank; the cost is one a stream and one a rank, whatever the batch size."""

    def __init__(self, plan: Plan, world_size: int):
        self._starts, self._world_size = plan.starts, world_size
        self._rounds, self._rest = np.divmod(plan.counts, world_size)
        self._first_home = (plan.starts + np.arange(len(plan.counts))) % world_size

    def samples(self, rank: int) -> Int64Array:
        """Gives the samples that are at home on a rank, int64 `[2, count]`: streams and positions."""
        offsets = (rank - self._first_home) % self._world_size
        counts = self._rounds + (offsets < self._rest)
        ids = np.repeat(np.arange(len(counts)), counts)
        places = np.arange(len(ids)) - np.repeat(np.cumsum(counts) - counts, counts)
        return np.stack([ids, (self._starts + offsets)[ids] + self._world_size * places])

    def surplus(self) -> Int64Array:
        """Gives by how many samples each rank has too many, int64 `[world_size]`; it sums to 0."""
        size = self._world_size
        # Each stream's incomplete round begins on its first home and goes on over the ranks, maybe around.
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
        """Gives what a rank with too few samples gets: its part of what the others hand over, rank after rank."""
        taken_before = int(-np.minimum(surplus[:rank], 0).sum())
        start, stop = taken_before, taken_before - int(surplus[rank])
        parts, begin = [], 0
        for giver in np.flatnonzero(surplus > 0).tolist():
            count = int(surplus[giver])
            if begin < stop and start < begin + count:
                given = self.samples(giver)[:, -count:]
                parts.append(given[:, max(start - begin, 0) : stop - begin])
            begin += count
        return np.concatenate(parts, axis=1)
