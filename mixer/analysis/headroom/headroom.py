"""Whether there is anything to gain from another mixture: short runs of fixed ones, and what they say."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from mixer.policies.shared.mixing_law import MixingLaw
from mixer.utils.arrays import FloatArray

_HALF = 0.5  # of the samples, which a run moves to one stream
_NEAR = 0.02  # how far weights of nearly the same mixture differ
_STRENGTH = 0.05  # of the pull to the own weights, in ranges of the losses
_LEAST_GAIN, _TIMES_NOISE = 0.005, 3.0
OWN, NEAR, BEST = "own weights", "nearly the same", "best by the fit"


@dataclass(frozen=True)
class ShortRun:
    """A short run of a fixed mixture.

    Args:
        name: What it is called.
        weights: Shares by stream.
        seed_offset: What is added to the recipe's seed.
    """

    name: str
    weights: Mapping[str, float]
    seed_offset: int = 0


def first_runs(own: Mapping[str, float]) -> list[ShortRun]:
    """Plans the runs before the fit: the own weights, nearly the same, and half of the samples moved to each stream.

    Args:
        own: The streams' own weights; those of weight 0 stay out.
    """
    names = [name for name, weight in own.items() if weight > 0.0]
    total = sum(own.values())
    shares = np.array([own[name] / total for name in names])
    factors = 1.0 + _NEAR * np.where(np.arange(len(names)) % 2, -1.0, 1.0)
    mixtures = {OWN: shares, NEAR: shares * factors / (shares @ factors)}
    for place, name in enumerate(names):
        leaning = (1.0 - _HALF) * shares
        leaning[place] += _HALF
        mixtures[f"more {name}"] = leaning
    return [ShortRun(name, _whole(own, names, mixture)) for name, mixture in mixtures.items()]


def best_of(runs: Sequence[ShortRun], objectives: Sequence[float]) -> ShortRun:
    """Plans the run of the best mixture by an exponential law of the first runs' results, on another seed.

    Args:
        runs: The first runs.
        objectives: `[num_runs]`: the objective of each, less is better.
    """
    own = runs[0].weights
    names = [name for name, weight in own.items() if weight > 0.0]
    mixtures = np.array([[run.weights[name] for name in names] for run in runs])
    values = np.array(objectives)[:, None]
    unit = float(np.ptp(values)) or 1.0
    best = MixingLaw.fit(mixtures, values / unit).best(np.ones(1), mixtures[0], _STRENGTH)
    return ShortRun(BEST, _whole(own, names, best), 1)


def _whole(own: Mapping[str, float], names: Sequence[str], shares: FloatArray) -> dict[str, float]:
    """Names the shares, rounded; streams that are not in `names` have 0."""
    return dict.fromkeys(own, 0.0) | dict(zip(names, (shares / shares.sum()).round(4).tolist(), strict=True))


@dataclass(frozen=True)
class Headroom:
    """What short runs say.

    Args:
        gain: How far the best mixture's objective is below that of the own weights, on a seed that the fit has not
            seen, relative to the latter (as it is where that is 0).
        noise: How far runs of nearly the same mixture lie apart, likewise.
        weights: The best mixture.
    """

    gain: float
    noise: float
    weights: Mapping[str, float]

    @classmethod
    def of(cls, first: Sequence[float], own: float, best: ShortRun, found: float) -> "Headroom":
        """Compares the objectives of the first runs, of the own weights on the other seed, and of the best mixture."""
        return cls((own - found) / (abs(own) or 1.0), abs(first[1] - first[0]) / (abs(first[0]) or 1.0), best.weights)

    @property
    def is_clear(self) -> bool:
        """Whether the gain is half a per cent or more, and three times the noise."""
        return self.gain >= max(_LEAST_GAIN, _TIMES_NOISE * self.noise)

    def sentences(self) -> list[str]:
        """Says it in words."""
        told = (
            f"On another seed the best mixture is {abs(self.gain):.1%} {'better' if self.gain >= 0 else 'worse'} than "
            f"the own weights; runs of nearly the same mixture differ by {self.noise:.1%}."
        )
        if self.is_clear:
            return [told, "There is something to gain: train with --mixing auto, or on the best mixture:"]
        return [told, "There is nothing to gain that so short runs show: stay with the own weights."]
