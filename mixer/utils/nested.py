"""Nested mappings as one, by the names that lead to each value."""

from collections.abc import Mapping
from typing import Any

Field = tuple[str, ...]  # the names that lead to a value, as ("training", "seed")


def flat(values: Any, field: Field = ()) -> dict[Field, Any]:
    """Gives the values of nested mappings.

    Args:
        values: A mapping; a value, or an empty mapping, is its own.
        field: Where it stands.

    Returns:
        Values by field.
    """
    if not isinstance(values, Mapping) or not values:
        return {field: values}
    parts = [flat(value, (*field, str(key))) for key, value in values.items()]
    return {name: value for part in parts for name, value in part.items()}
