"""Which mixtures to run next: first spread over what is allowed, then by expected improvement."""

import math

import numpy as np

from mixer.tools.analysis.fit.prediction import Prediction
from mixer.utils.arrays import FloatArray


def spread(candidates: FloatArray, runs: FloatArray, count: int) -> list[int]:
    """Chooses mixtures far from each other and from the runs, by distances between roots of shares.

    Farthest points (Gonzalez, 1985).

    Args:
        candidates: `[num_candidates, num_streams]`.
        runs: `[num_runs, num_streams]`.
        count: How many.

    Returns:
        Numbers of candidates.
    """
    chosen, roots = list[int](), np.sqrt(candidates)
    distances = np.full(len(candidates), np.inf)
    for run in np.sqrt(runs):
        distances = np.minimum(distances, ((roots - run) ** 2).sum(axis=1))
    for _ in range(count):
        chosen.append(int(distances.argmax()))
        distances = np.minimum(distances, ((roots - roots[chosen[-1]]) ** 2).sum(axis=1))
    return chosen


def expected_improvement(prediction: Prediction, candidates: FloatArray) -> FloatArray:
    """Gives by how much each candidate is expected to be below the best run (Jones et al., 1998).

    The best run is the one that is predicted best, so that a lucky seed does not count.
    """
    means, deviations = prediction.moments(candidates)
    deviations = np.maximum(deviations, 1e-12)
    best = float(prediction(prediction.mixtures).min())
    below = (best - means) / deviations
    density = np.exp(-0.5 * below**2) / math.sqrt(2.0 * math.pi)
    return np.asarray(deviations * (below * normal_share(below) + density))


def normal_share(values: FloatArray) -> FloatArray:
    """Gives the share of a standard normal distribution below each value."""
    return np.array([0.5 * math.erfc(-value / math.sqrt(2.0)) for value in values.tolist()])


def improving(
    prediction: Prediction, candidates: FloatArray, count: int, random: np.random.Generator
) -> tuple[list[int], float]:
    """Chooses mixtures, every other one by expected improvement, the rest at random.

    Each is chosen as if those before it had given what is predicted (Ginsbourger et al., 2010). Fits to runs that all
    crowd around the best one choose worse among mixtures of another model size, hence the random ones.

    Args:
        prediction: The fit to the runs so far.
        candidates: `[num_candidates, num_streams]`.
        count: How many.
        random: Draws the random ones.

    Returns:
        Numbers of candidates, and the greatest expected improvement.
    """
    chosen, greatest, believed = list[int](), list[float](), prediction
    for _ in range((count + 1) // 2):
        gains = expected_improvement(believed, candidates)
        gains[chosen] = -1.0
        chosen.append(int(gains.argmax()))
        greatest.append(float(gains.max()))
        believed = prediction.believing(candidates[chosen])
    others = np.setdiff1d(np.arange(len(candidates)), chosen)
    return [*chosen, *random.permutation(others)[: count // 2].tolist()], greatest[0]
