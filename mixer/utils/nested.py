"""Flattens nested mappings, and merges them."""

from collections.abc import Mapping
from typing import Any

Field = tuple[str, ...]  # the names that lead to a value, as ("training", "seed")


def flat(values: Any, field: Field = ()) -> dict[Field, Any]:
    """Returns the values of nested mappings by field; a value, or an empty mapping, is its own."""
    if not isinstance(values, Mapping) or not values:
        return {field: values}
    parts = [flat(value, (*field, str(key))) for key, value in values.items()]
    return {name: value for part in parts for name, value in part.items()}


def merged(values: Any, changes: Any) -> Any:
    """Changes nested mappings key by key; `None` takes a key away.

    Example:
        >>> merged({"a": {"b": 1, "c": 2}, "d": [3]}, {"a": {"b": None, "c": 4}, "d": [5]})
        {'a': {'c': 4}, 'd': [5]}
    """
    if not isinstance(values, Mapping) or not isinstance(changes, Mapping):
        return changes
    whole = {**values, **{key: merged(values.get(key), change) for key, change in changes.items()}}
    return {key: value for key, value in whole.items() if changes.get(key, value) is not None}
