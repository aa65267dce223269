"""The kinds of values in rows of JSON, from which the types of a table's columns follow."""

import json
from collections.abc import Mapping
from typing import Any

import datasets

from mixer.utils.errors import InvalidValueError

# "string", "int64", "float64" or "bool"; "json" for objects, which stay as they are; a list of one of these; `None`
# while there is no value.
Kind = Any
_SCALARS = {str: "string", int: "int64", float: "float64", bool: "bool", dict: "json"}
_WORDS = {
    "string": "a text",
    "int64": "a whole number",
    "float64": "a fraction",
    "bool": "true or false",
    "json": "an object",
}


def add_kinds(kinds: dict[str, Kind], row: Mapping[str, Any]) -> None:
    """Adds a row to the kinds of the columns of the rows before.

    Raises:
        ValueError: If a column cannot have its value.
    """
    for name, value in row.items():
        try:
            kinds[name] = _merged(kinds.get(name), _kind_of(value))
        except ValueError as error:
            raise InvalidValueError(f"column {name!r} has {error}", option=name) from None


def feature_of(kind: Kind, is_stored: bool = False) -> Any:
    """Returns the feature of `datasets` for a kind.

    Args:
        kind: The kind.
        is_stored: Whether the feature is that of `stored` values, in which an object is a text.
    """
    if isinstance(kind, list):
        return datasets.List(feature_of(kind[0], is_stored))
    if kind == "json" and not is_stored:
        return datasets.Json()
    return datasets.Value("string" if kind == "json" else kind or "null")


def stored(value: Any, kind: Kind) -> Any:
    """Returns a value whose objects are texts in JSON."""
    if isinstance(kind, list) and value is not None:
        return value if isinstance(kind[0], str) and kind[0] != "json" else [stored(part, kind[0]) for part in value]
    return value if value is None or kind != "json" else json.dumps(value, ensure_ascii=False)


def is_of(value: Any, kind: Kind) -> bool:
    """Returns whether a settled kind has a value."""
    try:
        return value is None or settled(_merged(kind, _kind_of(value))) == kind
    except ValueError:
        return False


def settled(kind: Kind) -> Kind:
    """Returns a kind that holds what may still come in a stream: texts where nothing was."""
    return [settled(kind[0])] if isinstance(kind, list) else kind or "string"


def _kind_of(value: Any) -> Kind:
    if isinstance(value, list):
        kind = None
        parts = (min(value), max(value)) if set(map(type, value)) == {int} else value  # tokens are many
        for part in parts:
            kind = _merged(kind, _kind_of(part))
        return [kind]
    if type(value) is int and not -(2**63) <= value < 2**63:
        raise ValueError(f"{value}, a whole number of more than 64 bits: put it in quotes, as a text")
    return _SCALARS.get(type(value))


def _merged(before: Kind, kind: Kind) -> Kind:
    if before is None or kind is None or before == kind:
        return before or kind
    if isinstance(before, list) and isinstance(kind, list):
        return [_merged(before[0], kind[0])]
    words = [_WORDS[part] if isinstance(part, str) else "a list" for part in (kind, before)]
    if {"a whole number", "a fraction"} == {*words}:
        return "float64"
    raise ValueError("{}, and {} before".format(*words))
