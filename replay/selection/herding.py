"""Samples whose mean is closest to the mean of their class."""

import numpy as np

from mixer.utils.arrays import FloatArray, Int64Array
from replay.selection.shared.exemplars import Exemplars


class Herding(Exemplars):
    """Chooses of each class samples whose mean is that of the class: herding, as in iCaRL.

    Rebuffi et al. 2017, arXiv:1611.07725, algorithm 4 (herding: Welling 2009): with `φ` the features, scaled to length
    1, and `μ` their mean over the class, exemplar `k` is `argmin_x ||μ − (φ(x) + Σ_{j<k} φ(p_j))/k||`; no sample is
    taken twice. The first few exemplars are themselves a good choice, so that a class shrinks by losing its last. One
    pass over the samples an exemplar: O(count · num_samples · num_features).

    Args:
        per_class: Slots of each class; `None` shares the capacity. See `Exemplars`.
    """

    def rank(self, features: FloatArray, count: int) -> Int64Array:
        """Chooses greedily; see `Exemplars.rank`."""
        lengths = np.linalg.norm(features, axis=1, keepdims=True)
        directions = features / np.where(lengths > 0.0, lengths, 1.0)
        mean = directions.mean(axis=0)
        # Of k²||μ − (φ + S)/k||² = ||φ||² + 2φ·(S − kμ) + ||S − kμ||² the last is the same for all samples.
        squares = (directions**2).sum(axis=1)
        chosen, total = np.zeros(count, dtype=np.int64), np.zeros_like(mean)
        for step in range(count):
            distances = squares + 2.0 * (directions @ (total - (step + 1) * mean))
            distances[chosen[:step]] = np.inf
            chosen[step] = distances.argmin()
            total += directions[chosen[step]]
        return chosen
