"""Which streams were there."""

import numpy as np
from numpy.typing import NDArray

from mixer.policies.base import Observation


def streams_there(observation: Observation) -> NDArray[np.bool_]:
    """Says which streams took part in the last update; others have not entered yet, ended or left.

    Args:
        observation: What the update showed.

    Returns:
        bool `[num_streams]`; all of them where the shares are not known.
    """
    if observation.shares is None:
        return np.ones(len(observation.weights), dtype=np.bool_)
    return np.asarray(observation.shares > 0.0)
