"""Assigns the samples of a step to ranks.

Every position of a stream has a home rank, independent of the counts of any step. So the right rank can prefetch
samples of coming steps before their counts are known; if samples were distributed anew in each step, they would change
ranks with every change of the mixture.
"""

import numpy as np

from mixer.mixture.step_plan import StepPlan
from mixer.utils.arrays import Int64Array


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
