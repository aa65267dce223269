"""Whether a sample is the same when it is read twice."""

import pickle
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from mixer.random_state import RandomState


def reads_the_same_twice(dataset: Any) -> bool:
    """Reads the first sample twice; generators of the process are left as they were found.

    Args:
        dataset: A map-style data set that is not empty.

    Returns:
        Whether both are equal, to the bit.
    """
    state = RandomState.capture()
    try:
        return _are_equal(dataset[0], dataset[0])
    finally:
        state.restore()


def _are_equal(one: Any, two: Any) -> bool:
    if type(one) is not type(two):
        return False
    if isinstance(one, Mapping):
        return one.keys() == two.keys() and all(_are_equal(one[key], two[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(two) and all(map(_are_equal, one, two))
    if isinstance(one, torch.Tensor):
        return one.dtype == two.dtype and _are_equal(one.detach().cpu().numpy(), two.detach().cpu().numpy())
    if isinstance(one, (np.ndarray, np.generic)):
        return (one.dtype, one.shape, one.tobytes()) == (two.dtype, two.shape, two.tobytes())
    return bool(pickle.dumps(one) == pickle.dumps(two))
