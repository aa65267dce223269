"""Checks of data sets: they can be indexed, and reading a sample twice gives the same."""

import math
import pickle
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from mixer.utils.random_state import RandomState, seed_generators

_NUM_SAMPLES = 8
_NUM_COMPARISONS = 16  # of one change in two all but one in 65,536 are found
_PLACE = 0x5EED


def check_map_style(dataset: Any, called: str) -> None:
    """Raises a `TypeError` if a data set has no `__len__` or `__getitem__`; `called` names it."""
    if not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
        raise TypeError(
            f"{called} must be a data set with __len__ and __getitem__, got a {type(dataset).__name__}. Rows of an "
            "iterable one are brought into memory or onto disk first, with datasets.Dataset.from_generator say."
        )


def find_unrepeatable(dataset: Any) -> int | None:
    """Finds a sample that differs between reads, with the random generators in different states.

    Reads a few samples spread over the data set three times or more. The generators of the process are restored.

    Args:
        dataset: A map-style data set that is not empty.

    Returns:
        The index of such a sample; `None` if there is none.
    """
    indices = np.unique(np.linspace(0, len(dataset) - 1, _NUM_SAMPLES).astype(np.int64)).tolist()
    num_again = max(2, math.ceil(_NUM_COMPARISONS / len(indices)))
    state = RandomState.capture()
    try:
        first = [_read(dataset, index, 0) for index in indices]
        for again in range(1, num_again + 1):
            for index, sample in zip(indices, first, strict=True):
                if not _are_equal(sample, _read(dataset, index, again)):
                    return int(index)
        return None
    finally:
        state.restore()


def _read(dataset: Any, index: int, again: int) -> Any:
    """Reads a sample with the generators elsewhere each time, also under a data set that puts them back."""
    seed_generators(_PLACE, index, again)
    return dataset[index]


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
