"""Objects that record their constructor's arguments, and their representation as plain data."""

import copy
import functools
import inspect
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Self, TypeVar

import numpy as np

from mixer.utils.errors import wrong_type
from mixer.utils.text import did_you_mean
from mixer.utils.user_code import library_of

# In place of a value that is no plain data, such as a function.
NO_DATA = "no_data"
# Before a number that JSON cannot hold: infinity or NaN.
FLOAT = "float"
# Longer lists and larger arrays are data, not settings.
_MOST_ITEMS = 10_000
_MOST_LEVELS = 20

T = TypeVar("T")


# What users call what options here call otherwise.
_SYNONYMS = {"passes": "epochs", "examples": "samples", "rows": "samples"}


def check_keywords(names: Iterable[str], known: Sequence[str], owner: str) -> None:
    """Refuses keyword arguments that do not exist, as Python does, with the one that was probably meant.

    Args:
        names: Names of the given arguments.
        known: Names of those that exist.
        owner: What they are arguments of.

    Raises:
        TypeError: For the first that does not exist.
    """
    for name in (name for name in names if name not in known):
        renamed = (name.replace(word, own) for word, own in _SYNONYMS.items() if word in name)
        hint = next(
            (f" Did you mean {synonym!r}?" for synonym in renamed if synonym in known), did_you_mean(name, known)
        )
        there_are = f" There are {', '.join(known)}."
        raise wrong_type(owner, f"has no argument {name!r}.{hint or there_are}")


def names_arguments(kind: type[T]) -> type[T]:
    """Makes a class suggest the keyword argument that was meant if there is none of a given name."""
    make: Any = vars(kind)["__init__"]
    known = list(inspect.signature(make).parameters)[1:]

    @functools.wraps(make)
    def made(self: Any, *args: Any, **kwargs: Any) -> None:
        check_keywords(kwargs, known, type(self).__name__)
        make(self, *args, **kwargs)

    setattr(kind, "__init__", made)  # noqa: B010  # mypy takes no other constructor
    return kind


class KeepsArguments:
    """Records the arguments of its constructor, and suggests the one that was meant if one does not exist."""

    _given_arguments: tuple[tuple[Any, ...], dict[str, Any]] = ((), {})

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Creates the object and records its arguments; a copy keeps the original's."""
        parameters = list(inspect.signature(cls.__init__).parameters.values())[1:]
        if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
            check_keywords(kwargs, [parameter.name for parameter in parameters], cls.__name__)
        made = super().__new__(cls)
        given = tuple(map(_copied, args)), {name: _copied(value) for name, value in kwargs.items()}
        object.__setattr__(made, "_given_arguments", given)  # frozen dataclasses, too
        return made

    @property
    def given_arguments(self) -> dict[str, Any]:
        """Arguments of the constructor, by name.

        Raises:
            TypeError: If they are unknown, as the object was created by `__new__` alone.
        """
        args, kwargs = self._given_arguments
        signature = inspect.signature(type(self))
        given = dict(signature.bind(*args, **kwargs).arguments)
        for parameter in signature.parameters.values():
            if parameter.kind is parameter.VAR_KEYWORD:
                given |= given.pop(parameter.name, {})
        return given


def _copied(value: Any) -> Any:
    """Copies mutable values."""
    return copy.copy(value) if isinstance(value, list | dict | np.ndarray) else value


def as_data(value: Any) -> Any:
    """Converts a policy, schedule or value to JSON-compatible data.

    Returns:
        Plain data: for an object `{"class_path": ..., "init_args": {...}}`, as in recipes; for an infinite number or
        NaN `{"float": "inf"}`; for anything else, and for more than 10,000 numbers, `{"no_data": text}`.

    Example:
        >>> from mixer import Floor, Temperature
        >>> as_data(Floor(Temperature(2.0), minimum=0.1))["init_args"]["minimum"]
        0.1
    """
    return _as_data(value, 0)


def _as_data(value: Any, level: int) -> Any:
    if isinstance(value, float):  # including numpy's
        return float(value) if math.isfinite(value) else {FLOAT: str(float(value))}
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, KeepsArguments):
        return {"class_path": _path_of(type(value)), **_arguments_of(value, level)}
    if isinstance(value, np.generic | np.ndarray) and value.dtype.kind in "biuf" and value.size <= _MOST_ITEMS:
        return _as_data(value.tolist(), level)
    if isinstance(value, Mapping | list | tuple) and len(value) <= _MOST_ITEMS and level < _MOST_LEVELS:
        if isinstance(value, Mapping):
            return {str(name): _as_data(part, level + 1) for name, part in value.items()}
        return [_as_data(part, level + 1) for part in value]
    return {NO_DATA: getattr(value, "__qualname__", type(value).__qualname__)}


def _arguments_of(rule: KeepsArguments, level: int) -> dict[str, Any]:
    if level >= _MOST_LEVELS:
        return {NO_DATA: "too many levels"}
    try:
        return {"init_args": _as_data(rule.given_arguments, level + 1)}
    except TypeError:  # created without its constructor
        return {NO_DATA: f"the arguments of {type(rule).__qualname__}"}


def _path_of(rule: type) -> str:
    """Names a class as recipes do: built-in classes without their module."""
    is_own = library_of(rule) in ("mixer", "replay")
    return rule.__name__ if is_own else f"{rule.__module__}.{rule.__qualname__}"
