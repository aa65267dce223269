"""Terms that explain a decision, from a policy's state."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from mixer.utils.arrays import FloatArray

Terms = Mapping[str, FloatArray | float]


def terms_of(state: Mapping[str, Any]) -> dict[str, FloatArray | float]:
    """Extracts the numbers of a policy's state.

    Args:
        state: The result of `Policy.state_dict`.

    Returns:
        Arrays and numbers by name, with NaN for `None`. Names of nested states are joined, except `values`. An inner
        policy's state is left out, for it explains itself; so is everything but numbers and lists of numbers.

    Example:
        >>> terms_of({"fast": [1.0, 2.0], "count": 3, "gains": {"values": [0.5, None]}, "policy": {"slow": [0.0]}})
        {'fast': array([1., 2.]), 'count': 3.0, 'gains': array([0.5, nan])}
    """
    terms: dict[str, FloatArray | float] = {}
    for name, value in state.items():
        if isinstance(value, Mapping) and name != "policy":
            inner = terms_of(value)
            terms |= {name if own == "values" else f"{name} {own}": term for own, term in inner.items()}
        elif _is_number(value):
            terms[name] = float(value)
        elif isinstance(value, list) and value and all(entry is None or _is_number(entry) for entry in value):
            terms[name] = np.array(value, dtype=np.float64)
    return terms


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float)
