"""What a policy remembers, as terms that its decision can be explained by."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from mixer.utils.arrays import FloatArray

Terms = Mapping[str, FloatArray | float]


def terms_of(state: Mapping[str, Any]) -> dict[str, FloatArray | float]:
    """Picks the numbers out of a policy's state.

    Args:
        state: What `Policy.state_dict` gave.

    Returns:
        By name: arrays and numbers; NaN where the state has `None`. Of a state in a state the names follow each other,
        but for `values`. What an inner policy remembers is left out, for it explains itself; so is what is no number,
        nor a row of them.

    Example:
        >>> terms_of({"fast": [1.0, 2.0], "count": 3, "gains": {"values": [0.5, None]}, "policy": {"slow": [0.0]}})
        {'fast': array([1., 2.]), 'count': 3.0, 'gains': array([0.5, nan])}
    """
    found: dict[str, FloatArray | float] = {}
    for name, value in state.items():
        if isinstance(value, Mapping) and name != "policy":
            inner = terms_of(value)
            found |= {name if own == "values" else f"{name} {own}": term for own, term in inner.items()}
        elif _is_number(value):
            found[name] = float(value)
        elif isinstance(value, list) and value and all(entry is None or _is_number(entry) for entry in value):
            found[name] = np.array(value, dtype=np.float64)
    return found


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float)
