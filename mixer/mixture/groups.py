"""Groups of streams, such as languages and domains, with their own weights and caps."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from mixer.mixture.apportion import as_fraction
from mixer.mixture.stream import Stream
from mixer.utils.arrays import BoolArray, FloatArray, Int64Array
from mixer.utils.errors import InvalidValueError
from mixer.utils.recorded_arguments import names_arguments

_MAX_SWEEPS = 200


@names_arguments
@dataclass(frozen=True)
class Grouping:
    """One partition of the streams into groups: `Stream.groups[name]` is a stream's group.

    Args:
        name: Criterion, such as `"language"`.
        weights: Share of each group (relative; streams keep their proportions inside a group). Set all groups' weights
            or none.
        max_shares: Maximum share of the mixture per group, as far as the active groups permit.
        max_epochs: Total passes over a group's samples, after which its streams leave the mixture. (The planned length
            of a run, and with it the learning rate, considers the streams' own caps only.)

    Raises:
        ValueError: If a weight is negative or all are 0, a share is outside (0, 1], or a number of epochs is not above
            0.
    """

    name: str
    weights: Mapping[str, float] = field(default_factory=dict)
    max_shares: Mapping[str, float] = field(default_factory=dict)
    max_epochs: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.weights and not (min(self.weights.values()) >= 0.0 and 0.0 < sum(self.weights.values()) < np.inf):
            raise self.error("weights", f"must be 0 or more and not all 0, got {dict(self.weights)}.")
        if any(not 0.0 < share <= 1.0 for share in self.max_shares.values()):
            raise self.error("max_shares", f"must be in (0, 1], got {dict(self.max_shares)}.")
        if any(not 0.0 < epochs < np.inf for epochs in self.max_epochs.values()):
            raise self.error("max_epochs", f"must be above 0, got {dict(self.max_epochs)}.")

    def error(self, option: str, text: str) -> InvalidValueError:
        """Returns an error about an option of the grouping."""
        return InvalidValueError(f"Grouping {self.name!r}: {option} {text}", option=option)


class Groups:
    """All groupings of a mixture, applied to its weights.

    With several groupings (language × domain), weights are fitted to each grouping's shares in turn until all hold
    (iterative proportional fitting; Deming and Stephan 1940).

    Args:
        streams: Streams of the mixture.
        groupings: Their groupings.

    Raises:
        ValueError: If a stream has no group in a grouping, or a named group has no stream.
    """

    def __init__(self, streams: Sequence[Stream], groupings: Sequence[Grouping]):
        self._tables = [_GroupTable(streams, grouping) for grouping in groupings]

    def fit(self, shares: FloatArray) -> FloatArray:
        """Fits shares to the groups' weights and caps.

        Args:
            shares: `[num_streams]`: shares that sum to 1; 0 for inactive streams.

        Returns:
            `[num_streams]`: shares that sum to 1, with the same zeros.
        """
        if not self._tables:
            return shares
        for _ in range(_MAX_SWEEPS):
            before = shares
            for table in self._tables:
                shares = table.fit(shares)
            if np.abs(shares - before).max() < 1e-12:
                break
        return shares

    def limit(self, available: FloatArray, shares: FloatArray, seen: Int64Array) -> FloatArray:
        """Limits the streams' available samples to the rest of their groups' epochs.

        Args:
            available: `[num_streams]`: available samples of each stream.
            shares: `[num_streams]`: shares, by which a group's last samples are split.
            seen: int64 `[num_streams]`: samples of each stream so far.

        Returns:
            `[num_streams]`: available samples of each stream.
        """
        for table in self._tables:
            available = table.limit(available, shares, seen)
        return available

    def have_left(self, seen: Int64Array) -> BoolArray:
        """Returns which streams have no exhausted group, bool `[num_streams]`, from the samples seen so far."""
        left = np.ones(len(seen), dtype=np.bool_)
        for table in self._tables:
            left &= ~(table.left(seen) < 1.0)[table.ids]  # NaN: unknown sizes have no limit
        return left


class _GroupTable:
    def __init__(self, streams: Sequence[Stream], grouping: Grouping):
        without = [stream.name for stream in streams if grouping.name not in stream.groups]
        if without:
            raise grouping.error("groups", f"lacks these streams: {without}.")
        member_of = [stream.groups[grouping.name] for stream in streams]
        names = sorted(set(member_of))
        for option in ("weights", "max_shares", "max_epochs"):
            unknown = sorted(set(getattr(grouping, option)) - set(names))
            if unknown:
                raise grouping.error(option, f"names groups without a stream: {unknown}.")
        missing = sorted(set(names) - set(grouping.weights))
        if grouping.weights and missing:
            raise grouping.error("weights", f"must be set for every group or none; missing: {missing}.")
        self.ids = np.array([names.index(group) for group in member_of])
        self._num_groups = len(names)
        self._weights = np.array([grouping.weights[name] for name in names]) if grouping.weights else None
        self._caps = np.array([grouping.max_shares.get(name, 1.0) for name in names])
        endless = [s.name for s in streams if s.is_iterable and s.groups[grouping.name] in grouping.max_epochs]
        if endless:
            raise grouping.error("max_epochs", f"needs sizes, but these streams are iterable: {endless}.")
        sizes = np.bincount(self.ids, weights=[stream.num_samples for stream in streams])
        passes = {name: as_fraction(number) for name, number in grouping.max_epochs.items()}
        limits = zip(names, sizes.tolist(), strict=True)
        self._max_samples = np.array([int(passes[name] * int(n)) if name in passes else np.inf for name, n in limits])

    def fit(self, shares: FloatArray) -> FloatArray:
        totals = np.bincount(self.ids, weights=shares, minlength=self._num_groups).astype(np.float64)
        targets = _capped(totals if self._weights is None else np.where(totals > 0, self._weights, 0.0), self._caps)
        if targets is None:  # only groups of weight 0 are left: nothing that these weights could say about them
            return shares
        fitted: FloatArray = shares * np.divide(targets, totals, out=np.zeros_like(totals), where=totals > 0)[self.ids]
        return fitted

    def left(self, seen: Int64Array) -> FloatArray:
        return np.asarray(self._max_samples - np.bincount(self.ids, weights=seen, minlength=self._num_groups))

    def limit(self, available: FloatArray, shares: FloatArray, seen: Int64Array) -> FloatArray:
        left = self.left(seen)
        for group in np.flatnonzero(np.isfinite(left)):
            members = self.ids == group
            available = available.copy()
            available[members] = _split(left[group], shares[members], available[members])
        return available


def _capped(totals: FloatArray, caps: FloatArray) -> FloatArray | None:
    if totals.sum() <= 0:
        return None
    targets: FloatArray = totals / totals.sum()
    capped = np.zeros(len(totals), dtype=bool)
    while (over := (targets > caps + 1e-12) & ~capped).any():
        capped |= over
        free = ~capped & (totals > 0)
        room = 1.0 - caps[capped].sum()
        if not free.any() or room <= 0:  # the active groups' caps cannot all hold: scale them up
            limits = np.where(totals > 0, caps, 0.0)
            targets = limits / limits.sum()
            break
        targets = np.where(capped, caps, np.where(free, totals * room / totals[free].sum(), 0.0))
    return targets


def _split(total: float, shares: FloatArray, limits: FloatArray) -> FloatArray:
    """Splits whole samples by shares with largest remainders; the excess of limited streams goes to others."""
    counts = np.zeros(len(shares))
    while (left := np.floor(total) - counts.sum()) >= 1 and (free := counts < limits).any():
        weights = np.where(free, shares, 0.0)
        weights = weights if weights.any() else free.astype(np.float64)
        exact = left * weights / weights.sum()
        more: FloatArray = np.floor(exact)
        missing = int(left - more.sum())
        more[np.argsort(more - exact, kind="stable")[:missing]] += 1.0
        counts = np.minimum(counts + more, limits)
    return counts
