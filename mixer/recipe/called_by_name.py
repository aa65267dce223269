"""Functions that a recipe names, with what they are called with."""

import inspect
import pkgutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Factory:
    """Something that a function makes.

    Args:
        factory: Dotted name of the function or class: `package.module.function`.
        arguments: What to call it with.
    """

    factory: str
    arguments: dict[str, Any] = field(default_factory=dict)


def call_by_name(field_name: str, dotted_name: str, arguments: Mapping[str, Any], *positional: Any) -> Any:
    """Calls a function that a recipe names.

    Args:
        field_name: The recipe's field, for errors.
        dotted_name: The function: `package.module.function`.
        arguments: What to call it with, by name.
        *positional: What to call it with before.

    Returns:
        What the function gives.

    Raises:
        ValueError: If it cannot be found, or fails; the field is named.
    """
    try:
        function = pkgutil.resolve_name(dotted_name)
        if inspect.ismodule(function):  # of a package's function that is called like the file that it stands in
            package, _, name = dotted_name.rpartition(".")
            function = getattr(pkgutil.resolve_name(package), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(
            f"{field_name}: {dotted_name!r} cannot be found ({error}). Is its package installed?"
        ) from None
    try:
        return function(*positional, **arguments)
    except (TypeError, ValueError, OSError, ImportError) as error:
        raise ValueError(f"{field_name}: {dotted_name}({_written(arguments)}) failed: {error}") from error


def _written(arguments: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in arguments.items())
