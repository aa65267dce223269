"""How much memory the parts of a mixture take."""

import json
from typing import Any

import numpy as np
from torch.utils.data import Dataset

from mixer.mixture.controller import Mixing
from mixer.mixture.stream import Stream


def state_bytes(mixing: Mixing) -> int:
    """Measures the state that a checkpoint holds.

    Args:
        mixing: The controller.

    Returns:
        Bytes of it as JSON.
    """
    return len(json.dumps(mixing.state_dict()))


def array_bytes(part: Any) -> int:
    """Adds up the arrays that an object holds, by whatever it is made of in this project; data sets are left out.

    Args:
        part: The object.

    Returns:
        Bytes of its arrays.
    """
    return _walk(part, set())


def _walk(part: Any, visited: set[int]) -> int:
    if id(part) in visited or isinstance(part, Dataset | Stream):
        return 0
    visited.add(id(part))
    if isinstance(part, np.ndarray):
        return part.nbytes if part.base is None else _walk(part.base, visited)
    if isinstance(part, dict):
        return sum(_walk(value, visited) for value in part.values())
    if isinstance(part, list | tuple | set):
        return sum(_walk(value, visited) for value in part)
    is_own = type(part).__module__.split(".")[0] in ("mixer", "replay")
    return _walk(vars(part), visited) if is_own and hasattr(part, "__dict__") else 0
