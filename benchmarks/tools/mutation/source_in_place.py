"""Puts another source in the place of a module that was imported already."""

import functools
import inspect
from collections.abc import Iterator
from types import FunctionType, ModuleType
from typing import Any


def put_in(module: ModuleType, source: str) -> None:
    """Puts another source in the place of a module's, for all who imported from it as well.

    Args:
        module: The module.
        source: Its source with a change inside a function, a default, or a value at the top of the module or a class.
    """
    before = dict(vars(module))
    classes = [value for value in before.values() if isinstance(value, type) and value.__module__ == module.__name__]
    old = {function.__qualname__: function for function in _functions_in(module)}
    exec(compile(source, str(module.__file__), "exec"), vars(module))  # noqa: S102
    for function in _functions_in(module):
        if (original := old.get(function.__qualname__)) is not None:
            original.__code__ = function.__code__
            original.__defaults__, original.__kwdefaults__ = function.__defaults__, function.__kwdefaults__
    for original_class in classes:
        _take_values(original_class, vars(module)[original_class.__name__])
    for name, value in before.items():
        if getattr(value, "__module__", None) == module.__name__ and isinstance(value, type | FunctionType):
            setattr(module, name, value)
        elif isinstance(value, dict) and not name.startswith("__"):
            changed = vars(module)[name]
            value.clear()
            value.update(changed)
            setattr(module, name, value)


def _take_values(original: type, changed: type) -> None:
    for name, value in list(vars(changed).items()):
        if isinstance(value, bool | int | float | str | tuple) and not name.startswith("__"):
            setattr(original, name, value)


def _functions_in(module: ModuleType) -> Iterator[FunctionType]:
    for value in vars(module).values():
        if getattr(value, "__module__", None) != module.__name__:
            continue
        if isinstance(value, type):
            for attribute in vars(value).values():
                yield from _functions_of(attribute)
        else:
            yield from _functions_of(value)


def _functions_of(attribute: Any) -> Iterator[FunctionType]:
    if isinstance(attribute, FunctionType):
        yield inspect.unwrap(attribute)  # what `contextlib.contextmanager` makes of one is the same for all
    elif isinstance(attribute, property):
        yield from (part for part in (attribute.fget, attribute.fset) if isinstance(part, FunctionType))
    elif isinstance(attribute, classmethod | staticmethod):
        yield from _functions_of(attribute.__func__)
    elif isinstance(attribute, functools.cached_property):
        yield from _functions_of(attribute.func)
