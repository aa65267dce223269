"""Which streams were there."""

import numpy as np
from numpy.typing import NDArray

from mixer.policies.base import Observation


def streams_there(observation: Observation) -> NDArray[np.bool_]:
    """Says which streams were there in the last update.

    Args:
        observation: What it showed.

    Returns:
        bool `[num_streams]`: false for those that had a weight and got nothing: they ended, or have not begun. A stream
        without a weight counts as there.
    """
    if observation.shares is None:
        return np.ones(len(observation.weights), dtype=np.bool_)
    there: NDArray[np.bool_] = (observation.shares > 0) | (observation.weights <= 0)
    return there
