"""Which mixtures are allowed."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mixer.utils.arrays import FloatArray
from mixer.utils.errors import require, wrong_value
from mixer.utils.ranges import check_range

_TOLERANCE = 1e-9
_NUM_HALVINGS = 50
_SPREADS = (1.0, 0.5, 0.1)  # of mixtures around the prior: Dirichlet concentrations, in streams


@dataclass(frozen=True)
class Constraints:
    """Bounds of a mixture; streams that they do not name are free.

    Args:
        prior: The mixture to start from, such as the natural one, with a weight of each stream; `None` for equal
            shares.
        least: Least shares.
        most: Largest shares.
        sizes: Samples (or tokens) that each stream has. With `budget` and `passes` they bound shares.
        budget: Samples (or tokens) of the run that the mixture is for.
        passes: How often that run may repeat a stream, at most.
        divergence: Largest Kullback-Leibler divergence of the mixture from the prior, in nats.
        groups: Streams of a group, with their fixed weights in it: a mixture that was found earlier counts as one.
        bounds: Largest predicted losses, by name.

    Raises:
        ValueError: If a value is no number, or out of its range.
    """

    prior: Mapping[str, float] | None = None
    least: Mapping[str, float] = field(default_factory=dict)
    most: Mapping[str, float] = field(default_factory=dict)
    sizes: Mapping[str, float] = field(default_factory=dict)
    budget: float | None = None
    passes: float | None = None
    divergence: float | None = None
    groups: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    bounds: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _check_numbers("least", self.least, 0.0, 1.0, "it is a share")
        _check_numbers("most", self.most, 0.0, 1.0, "it is a share")
        _check_numbers("prior", self.prior or {}, 0.0, math.inf, "it is a weight")
        _check_numbers("sizes", self.sizes, 0.0, math.inf, "it is a number of samples")
        _check_numbers("bounds", self.bounds, -math.inf, math.inf, "it is a loss")
        require(isinstance(self.groups, Mapping), "groups", "streams with weights, by group", self.groups)
        for name, group in self.groups.items():
            _check_numbers(f"groups.{name}", group, 0.0, math.inf, "it is a weight")
            require(any(group.values()), f"groups.{name}", "weights of which one is above 0", dict(group))
        for name in ("budget", "passes", "divergence"):
            value = getattr(self, name)
            if value is not None:
                check_range(name, value, 0.0, math.inf, "leave it out for no bound")
                require(value > 0 or name == "divergence", name, "above 0", value, "Leave it out for no bound.")
        given = (bool(self.sizes), self.budget is not None, self.passes is not None)
        expected = "given with sizes and budget, which bound how often a stream is repeated, or none of the three"
        require(all(given) or not any(given), "passes", expected, self.passes)

    def of(self, streams: Sequence[str]) -> "Region":
        """Applies the bounds to streams.

        Raises:
            ValueError: If there is no such stream, or no mixture keeps all bounds.
        """
        named = {"prior": self.prior or {}, "least": self.least, "most": self.most, "sizes": self.sizes}
        named |= {f"groups.{name}": group for name, group in self.groups.items()}
        for option, names in named.items():
            unknown = [name for name in names if name not in streams]
            require(not unknown, option, f"of some of the streams {list(streams)}", unknown)
        missing = [] if self.prior is None else [name for name in streams if name not in self.prior]
        require(not missing, "prior", f"a weight of each of {list(streams)}", self.prior)
        parts = self._parts(streams)
        least = np.array([self.least.get(name, 0.0) for name in streams])
        most = np.array([self._most(name) for name in streams])
        prior = np.array([1.0 if self.prior is None else self.prior[name] for name in streams])
        require(bool(prior.any()), "prior", "above 0 for a stream", self.prior)
        is_member = parts > 0.0
        shares = np.where(is_member, parts, 1.0)
        low = np.where(is_member, least / shares, 0.0).max(axis=1)
        high = np.minimum(np.where(is_member, most / shares, np.inf).min(axis=1), 1.0)
        if (low > high + _TOLERANCE).any() or low.sum() > 1.0 + _TOLERANCE or high.sum() < 1.0 - _TOLERANCE:
            bounds = {name: f"{a:.3f} to {b:.3f}" for name, a, b in zip(streams, least, most, strict=True)}
            raise wrong_value(
                "most" if high.sum() < 1.0 else "least",
                f"No mixture keeps all bounds of shares ({bounds}): least shares sum to {low.sum():.3f}, largest to "
                f"{high.sum():.3f}. Lower least, or raise most or passes.",
            )
        return Region(parts, low, high, prior @ is_member.T / prior.sum(), self.divergence)

    def _most(self, stream: str) -> float:
        repeated = 1.0
        if self.budget and self.passes and stream in self.sizes:
            repeated = self.passes * self.sizes[stream] / self.budget
        return min(1.0, self.most.get(stream, 1.0), repeated)

    def _parts(self, streams: Sequence[str]) -> FloatArray:
        """Gives the streams' shares in each group `[num_groups, num_streams]`; others are groups of their own."""
        members = [name for group in self.groups.values() for name in group]
        twice = sorted({name for name in members if members.count(name) > 1})
        if twice:
            raise wrong_value("groups", f"{twice} are in several groups; a stream is in one at most.")
        groups = [*self.groups.values(), *({name: 1.0} for name in streams if name not in members)]
        parts = np.array([[group.get(name, 0.0) for name in streams] for group in groups])
        return np.asarray(parts / parts.sum(axis=1, keepdims=True))


def _check_numbers(option: str, numbers: Any, least: float, most: float, hint: str) -> None:
    require(isinstance(numbers, Mapping), option, "numbers by name", numbers)
    for name, number in numbers.items():
        check_range(f"{option}.{name}", number, least, most, hint)


@dataclass(frozen=True)
class Region:
    """Mixtures that keep all bounds, as shares of groups.

    Args:
        parts: `[num_groups, num_streams]`: shares within each group.
        low: `[num_groups]`: least shares.
        high: `[num_groups]`: largest shares.
        start: `[num_groups]`: the prior; what is nearest to it within the bounds is `prior`.
        divergence: Largest divergence from the prior.
    """

    parts: FloatArray
    low: FloatArray
    high: FloatArray
    start: FloatArray
    divergence: float | None = None

    @property
    def prior(self) -> FloatArray:
        """`[num_streams]`: the prior within the bounds."""
        return np.asarray(_clip(self.start[None], self.low, self.high)[0] @ self.parts)

    def within(self, low: FloatArray, high: FloatArray) -> "Region":
        """Narrows the region to ranges of the streams' shares `[num_streams]`, where that leaves one."""
        is_member = self.parts > 0.0
        shares = np.where(is_member, self.parts, 1.0)
        least = np.maximum(self.low, np.where(is_member, low / shares, 0.0).min(axis=1))
        most = np.minimum(self.high, np.where(is_member, high / shares, 0.0).max(axis=1))
        least, most = np.minimum(least, self.high), np.maximum(most, self.low)
        is_empty = least.sum() > 1.0 or most.sum() < 1.0 or (least > most).any()
        return self if is_empty else Region(self.parts, least, most, self.start, self.divergence)

    def nearest(self, groups: FloatArray) -> FloatArray:
        """Moves mixtures `[num_mixtures, num_groups]` into the region and gives streams' shares."""
        inside = _clip(groups, self.low, self.high)
        if self.divergence is None:
            return np.asarray(inside @ self.parts)
        prior = _clip(self.start[None], self.low, self.high)
        low, high = np.zeros((len(inside), 1)), np.ones((len(inside), 1))
        if (_divergence(inside, prior) <= self.divergence).all():
            low = high
        for _ in range(_NUM_HALVINGS):  # the divergence rises on the way from the prior
            middle = (low + high) / 2.0
            keeps = (_divergence(prior + middle * (inside - prior), prior) <= self.divergence)[:, None]
            low, high = np.where(keeps, middle, low), np.where(keeps, high, middle)
        return np.asarray((prior + low * (inside - prior)) @ self.parts)

    def groups_of(self, mixtures: FloatArray) -> FloatArray:
        """Gives shares of groups of streams' shares."""
        return np.asarray(mixtures @ (self.parts > 0.0).T.astype(np.float64))

    def draw(self, count: int, random: np.random.Generator) -> FloatArray:
        """Draws mixtures `[count, num_streams]` around the prior, near and far."""
        prior = np.maximum(self.groups_of(self.prior[None])[0], 1e-3 / len(self.low))
        spread = random.choice(_SPREADS, (count, 1)) * len(prior)
        drawn = random.gamma(np.maximum(prior * spread, 1e-2)) + 1e-300
        return self.nearest(drawn / drawn.sum(axis=1, keepdims=True))

    def near(self, mixtures: FloatArray, width: float, random: np.random.Generator) -> FloatArray:
        """Draws a mixture near each of `[num_mixtures, num_streams]`: some shares grow or shrink."""
        groups = self.groups_of(mixtures) + width * 1e-3
        factors = np.exp(width * random.standard_normal(groups.shape) * (random.random(groups.shape) < 0.5))
        moved = groups * factors
        return self.nearest(moved / moved.sum(axis=1, keepdims=True))


def _clip(points: FloatArray, low: FloatArray, high: FloatArray) -> FloatArray:
    """Scales shares `[num_points, num_groups]` and clips them, such that they sum to 1."""
    least, most = np.full((len(points), 1), 0.0), np.full((len(points), 1), 1e12)
    positive = np.maximum(points, 1e-9)
    for _ in range(_NUM_HALVINGS):
        middle = np.sqrt(np.maximum(least, 1e-12) * most)
        is_less = np.clip(middle * positive, low, high).sum(axis=1, keepdims=True) < 1.0
        least, most = np.where(is_less, middle, least), np.where(is_less, most, middle)
    found = np.clip(most * positive, low, high)
    return np.asarray(found / found.sum(axis=1, keepdims=True))


def _divergence(mixtures: FloatArray, prior: FloatArray) -> FloatArray:
    with np.errstate(divide="ignore", invalid="ignore"):
        terms = np.where(mixtures > 0.0, mixtures * np.log(mixtures / prior), 0.0)
    return np.asarray(terms.sum(axis=1))
