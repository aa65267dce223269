"""The runs of a search, and what they say."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from mixer.tools.analysis.fit import FittedMixture
from mixer.tools.analysis.fit.constraints import Region
from mixer.tools.analysis.search.design import improving, spread
from mixer.utils.arrays import FloatArray

_HALF = 0.5  # of the samples, which a run moves to one stream
_NEAR = 0.02  # how far weights of nearly the same mixture differ
_MOST_LEANING = 8  # streams, each of which is given more of; else mixtures are drawn
_NUM_DRAWN = 2000
_CLEARLY = 6.3  # above so many times a single difference, one in twenty lies by chance (Student's t)
PRIOR, NEAR, BEST = "your weights", "nearly the same", "best by the fit"


@dataclass(frozen=True)
class ShortRun:
    """A short run of a fixed mixture.

    Args:
        name: What it is called.
        weights: Shares by stream.
        seed_offset: What is added to the recipe's seed.
        times: How many times as long as the other runs, the recipe's own length at most.
    """

    name: str
    weights: Mapping[str, float]
    seed_offset: int = 0
    times: int = 1


def named(streams: Sequence[str], shares: FloatArray) -> dict[str, float]:
    """Names the shares, rounded."""
    return dict(zip(streams, (shares / shares.sum()).round(4).tolist(), strict=True))


def first_runs(streams: Sequence[str], region: Region) -> list[ShortRun]:
    """Plans the runs before a fit: your weights, nearly the same, and half of the samples moved to each stream.

    Of many streams, as many mixtures are spread over what is allowed as would be needed for eight.

    Args:
        streams: Names of the streams.
        region: Mixtures that are allowed; its prior has your weights.
    """
    prior = region.prior
    used = np.flatnonzero(prior > 0.0)
    factors = 1.0 + _NEAR * np.where(np.cumsum(prior > 0.0) % 2, 1.0, -1.0)
    mixtures = {PRIOR: prior, NEAR: prior * factors / (prior @ factors)}
    if len(used) <= _MOST_LEANING:
        leaning = (1.0 - _HALF) * prior + _HALF * np.eye(len(streams))[used]
        inside = region.nearest(region.groups_of(leaning))
        mixtures |= {f"more {streams[n]}": mixture for n, mixture in zip(used.tolist(), inside, strict=True)}
    else:
        drawn = region.draw(_NUM_DRAWN, np.random.default_rng(0))
        chosen = spread(drawn, prior[None], _MOST_LEANING)
        mixtures |= {f"spread {number}": mixture for number, mixture in enumerate(drawn[chosen], 1)}
    return [ShortRun(name, named(streams, mixture)) for name, mixture in mixtures.items()]


def next_runs(fitted: FittedMixture, count: int) -> tuple[list[ShortRun], float]:
    """Plans further runs: by expected improvement and spread in turns.

    Returns:
        The runs, and the greatest expected improvement.
    """
    random, number = np.random.default_rng(len(fitted.runs)), len(fitted.runs)
    drawn = fitted.region.draw(_NUM_DRAWN, random)
    near = fitted.region.near(np.repeat(fitted.shares[None], _NUM_DRAWN // 4, axis=0), 0.5, random)
    candidates = np.concatenate([drawn, near])
    chosen, gain = improving(fitted.prediction, candidates, count, random)
    return [
        ShortRun(f"run {number + place}", named(fitted.streams, candidates[own])) for place, own in enumerate(chosen, 1)
    ], gain


def to_check(fitted: FittedMixture, done: Sequence[tuple[ShortRun, float]]) -> Mapping[str, float]:
    """Chooses the weights that another seed is to check: the fit's, or those of a run that is clearly better.

    A fit to few runs that explains little stays at the prior, where there is nothing to check.

    Args:
        fitted: The fit.
        done: The runs and their objectives: your weights, nearly the same, and others.
    """
    near = abs(done[1][1] - done[0][1])
    best, value = min(done, key=lambda run: fitted.sign * run[1])
    predicted = float(fitted.prediction(fitted.shares[None])[0])
    is_better = predicted - fitted.sign * value > _CLEARLY * near
    return best.weights if is_better else named(fitted.streams, fitted.shares)
