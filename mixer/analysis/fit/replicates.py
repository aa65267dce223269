"""Runs of the same mixture, which are no check on each other."""

import numpy as np
from numpy.typing import NDArray

from mixer.utils.arrays import FloatArray

Groups = NDArray[np.intp]

_SAME_MIXTURE = 1e-3


def group_runs(*mixtures: FloatArray) -> Groups:
    """Groups runs of the same mixture, to a thousandth: leaving out one of them alone would hide nothing.

    Runs that are like a third one are in its group too, so that the order of runs makes no difference.

    Args:
        *mixtures: `[num_runs, num_streams]`; of several, as shares of samples and of tokens, runs have to agree in one.

    Returns:
        `[num_runs]`: number of the group, in the order in which they come.
    """
    groups = np.arange(len(mixtures[0]))
    for run in range(len(groups)):
        like = [np.abs(shares - shares[run]).max(axis=1) <= _SAME_MIXTURE for shares in mixtures]
        joined = groups[np.any(like, axis=0)]
        groups[np.isin(groups, joined)] = joined.min()
    return numbered(groups)


def numbered(groups: Groups) -> Groups:
    """Numbers groups from 0 without a gap.

    Args:
        groups: `[num_runs]`: a number for each group.

    Returns:
        `[num_runs]`: numbers in the order in which groups come.
    """
    _, first, inverse = np.unique(groups, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first))[inverse]
