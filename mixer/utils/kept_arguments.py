"""Rules that know what they were made with."""

import copy
import inspect
from typing import Any, Self

import numpy as np


class KeepsArguments:
    """Keeps the arguments of its constructor, as they were given."""

    _given_arguments: tuple[tuple[Any, ...], dict[str, Any]] = ((), {})

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Makes the object and keeps what it is made with; a copy keeps those of what it copies."""
        made = super().__new__(cls)
        given = tuple(map(_copied, args)), {name: _copied(value) for name, value in kwargs.items()}
        object.__setattr__(made, "_given_arguments", given)  # frozen dataclasses, too
        return made

    @property
    def given_arguments(self) -> dict[str, Any]:
        """What the constructor was given, by name.

        Raises:
            TypeError: If that is not known, as the object was made by `__new__` alone.
        """
        args, kwargs = self._given_arguments
        signature = inspect.signature(type(self))
        given = dict(signature.bind(*args, **kwargs).arguments)
        for parameter in signature.parameters.values():
            if parameter.kind is parameter.VAR_KEYWORD:
                given |= given.pop(parameter.name, {})
        return given


def _copied(value: Any) -> Any:
    """Copies what may be changed afterwards."""
    return copy.copy(value) if isinstance(value, list | dict | np.ndarray) else value
