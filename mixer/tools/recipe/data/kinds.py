"""The kinds of values in rows of JSON, from which the types of a table's columns follow."""

import json
from collections.abc import Mapping
from typing import Any

import datasets

# "string", "int64", "float64" or "bool"; a list of one kind; a mapping of kinds by key; "json" for parts of objects
# that have several kinds, which stay as they are; `None` while there is no value.
Kind = Any
_SCALARS = {str: "string", int: "int64", float: "float64", bool: "bool"}
_WORDS = {
    "string": "a text",
    "int64": "a whole number",
    "float64": "a fraction",
    "bool": "true or false",
    "list": "a list",
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
            raise ValueError(f"column {name!r} has {error}") from None


def feature_of(kind: Kind, is_stored: bool = False) -> Any:
    """Returns the feature of `datasets` for a kind.

    Args:
        kind: The kind.
        is_stored: Whether the feature is that of `stored` values, in which JSON is a text.
    """
    if isinstance(kind, list):
        return datasets.List(feature_of(kind[0], is_stored))
    if isinstance(kind, dict):
        return {name: feature_of(part, is_stored) for name, part in kind.items()}
    if kind == "json" and not is_stored:
        return datasets.Json()
    return datasets.Value("string" if kind == "json" else kind or "null")


def stored(value: Any, kind: Kind) -> Any:
    """Returns a value whose parts of several kinds are texts in JSON."""
    if value is None or not has_json(kind):
        return value
    if isinstance(kind, list):
        return [stored(part, kind[0]) for part in value]
    if isinstance(kind, dict):
        return {name: stored(value[name], part) for name, part in kind.items()}
    return json.dumps(value, ensure_ascii=False)


def settled(kind: Kind) -> Kind:
    """Returns a kind that holds what may still come in a stream: texts where nothing was, objects with any keys."""
    if isinstance(kind, list):
        return [settled(kind[0])]
    return "json" if isinstance(kind, dict) else kind or "string"


def has_json(kind: Kind) -> bool:
    """Returns whether a kind has parts of several kinds."""
    if isinstance(kind, list):
        return has_json(kind[0])
    return any(map(has_json, kind.values())) if isinstance(kind, dict) else kind == "json"


def _kind_of(value: Any, in_object: bool = False) -> Kind:
    if type(value) is str:
        return "string"
    if isinstance(value, dict):
        return {name: _kind_of(part, in_object=True) for name, part in value.items()} or "json"
    if isinstance(value, list):
        kind = None
        parts = (min(value), max(value)) if set(map(type, value)) == {int} else value  # tokens are many
        for part in parts:
            kind = _merged(kind, _kind_of(part, in_object), in_object)
        return [kind]
    if type(value) is int and not -(2**63) <= value < 2**63:
        raise ValueError(f"{value}, a whole number of more than 64 bits: put it in quotes, as a text")
    return _SCALARS.get(type(value))


def _merged(before: Kind, kind: Kind, in_object: bool = False) -> Kind:
    if kind is None or (isinstance(kind, str) and before == kind):
        return before
    if before is None:
        return kind
    if isinstance(before, list) and isinstance(kind, list):
        return [_merged(before[0], kind[0], in_object)]
    if isinstance(before, dict) and isinstance(kind, dict) and list(before) == list(kind):
        return {name: _merged(part, kind[name], in_object=True) for name, part in before.items()}
    if in_object or all(isinstance(one, dict) or one == "json" for one in (before, kind)):
        return "json"
    if {_name(before), _name(kind)} == {"int64", "float64"}:
        return "float64"
    words = [_WORDS.get(_name(one), "an object") for one in (kind, before)]
    raise ValueError("{}, and {} before".format(*words))


def _name(kind: Kind) -> str:
    return "list" if isinstance(kind, list) else kind if isinstance(kind, str) else "object"
