"""Runs of the same mixture, which are no check on each other."""

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]

_SAME_MIXTURE = 1e-3


def group_runs(mixtures: FloatArray) -> NDArray[np.intp]:
    """Groups runs of the same mixture, to a thousandth: leaving out one of them alone would hide nothing.

    Args:
        mixtures: `[num_runs, num_streams]`.

    Returns:
        `[num_runs]`: number of the group, in the order in which they come.
    """
    groups = np.full(len(mixtures), -1, dtype=np.intp)
    for run, mixture in enumerate(mixtures):
        if groups[run] < 0:
            is_same = np.abs(mixtures - mixture).max(axis=1) <= _SAME_MIXTURE
            groups[is_same & (groups < 0)] = groups.max() + 1
    return groups
