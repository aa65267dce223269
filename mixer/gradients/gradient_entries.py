"""From a measurement of the streams' gradients to log entries."""

import itertools
from collections.abc import Sequence

import numpy as np

from mixer.policies.gradient_statistics import GradientStatistics

# Of more pairs than this a log says only the least and the mean.
_MOST_PAIRS = 6


def gradient_entries(names: Sequence[str], statistics: GradientStatistics) -> dict[str, float]:
    """Says in numbers what was measured; what is not known, or not finite, is left out.

    Args:
        names: Names of the streams.
        statistics: What was measured.

    Returns:
        `gradient_norm/NAME` (left out where noise hides it), `gradient_noise/NAME` (noise scale, in samples),
        `gradient_cosine/A/B` (`/min` and `/mean` where there are more than six pairs) and `gradient_noise_scale` (of
        the mixture, in samples).
    """
    # Noise may make a squared norm negative: then the gradient is too short to be seen, and its noise scale unknown.
    norms = np.sqrt(np.where(statistics.squared_norm > 0.0, statistics.squared_norm, np.nan))
    signal, noise = statistics.noise
    with np.errstate(divide="ignore", invalid="ignore"):
        scales = statistics.variance / statistics.squared_norm
        mixture = np.divide(noise, signal)
    entries = {f"gradient_norm/{name}": float(norm) for name, norm in zip(names, norms, strict=True)}
    entries |= {f"gradient_noise/{name}": float(scale) for name, scale in zip(names, scales, strict=True) if scale > 0}
    entries |= _cosines(names, statistics)
    if mixture > 0:
        entries["gradient_noise_scale"] = float(mixture)
    return {name: value for name, value in entries.items() if np.isfinite(value)}


def _cosines(names: Sequence[str], statistics: GradientStatistics) -> dict[str, float]:
    cosines = statistics.cosines[np.triu_indices(len(names), 1)]
    if len(cosines) <= _MOST_PAIRS:
        pairs = zip(itertools.combinations(names, 2), cosines, strict=True)
        return {f"gradient_cosine/{one}/{other}": float(cosine) for (one, other), cosine in pairs}
    known = cosines[np.isfinite(cosines)]
    if not len(known):
        return {}
    return {"gradient_cosine/min": float(known.min()), "gradient_cosine/mean": float(known.mean())}
