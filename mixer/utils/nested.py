"""Flattens nested mappings."""

from collections.abc import Mapping
from typing import Any

Field = tuple[str, ...]  # the names that lead to a value, as ("training", "seed")


def flat(values: Any, field: Field = ()) -> dict[Field, Any]:
    """Returns the values of nested mappings by field; a value, or an empty mapping, is its own."""
    if not isinstance(values, Mapping) or not values:
        return {field: values}
    parts = [flat(value, (*field, str(key))) for key, value in values.items()]
    return {name: value for part in parts for name, value in part.items()}
