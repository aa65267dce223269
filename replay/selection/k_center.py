"""Samples that cover their class in feature space."""

import numpy as np

from mixer.utils.arrays import FloatArray, Int64Array
from replay.selection.shared.exemplars import Exemplars


class KCenter(Exemplars):
    """Chooses of each class samples that cover all of it: greedy k-center, farthest first.

    Gonzalez 1985, "Clustering to Minimize the Maximum Intercluster Distance" (as core sets: Sener and Savarese 2018,
    arXiv:1708.00489, algorithm 1): each exemplar is the sample farthest from those chosen before. The largest distance
    of a sample to its nearest exemplar is then at most twice the least that is possible. The first exemplar is the
    sample nearest to the mean. One pass over the samples an exemplar.

    Args:
        per_class: Slots of each class; `None` shares the capacity. See `Exemplars`.
    """

    def rank(self, features: FloatArray, count: int) -> Int64Array:
        """Chooses greedily; see `Exemplars.rank`."""
        centered = features - features.mean(axis=0)  # or the squares below would lose digits far from the origin
        squares = (centered**2).sum(axis=1)
        chosen, nearest = np.zeros(count, dtype=np.int64), np.full(len(features), np.inf)
        chosen[0] = squares.argmin()
        for step in range(1, count):
            last = chosen[step - 1]
            np.minimum(nearest, squares - 2.0 * (centered @ centered[last]) + squares[last], out=nearest)
            nearest[last] = -np.inf  # no sample twice, where several are the same
            chosen[step] = nearest.argmax()
        return chosen
