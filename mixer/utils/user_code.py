"""Who wrote a piece of code: a known library, or the user."""

import functools
from typing import Any

# Decorators of some stand around the code of others.
_LIBRARIES = ("mixer", "replay", "tasks", "transformers", "trl", "accelerate", "torch", "functools", "contextlib")


def module_of(code: Any) -> str:
    """Names the module in which a piece of code was written.

    `functools.wraps` copies the name of the wrapped function's module, but not the names that the code sees. Of a
    wrapped or partial function, the outermost code that is in no known library counts, else the innermost.

    Args:
        code: A function, a method, a class, or an object with a class.
    """
    while True:
        if isinstance(code, type):
            return code.__module__
        code = getattr(code, "__func__", code)  # of a bound method
        names = getattr(code, "__globals__", None)
        module = names["__name__"] if names else type(code).__module__
        inner = code.func if isinstance(code, functools.partial) else getattr(code, "__wrapped__", None)
        if inner is None or module.partition(".")[0] not in _LIBRARIES:
            return str(module)
        code = inner


def library_of(code: Any) -> str | None:
    """Names the library that a piece of code is from; `None` for the user's, whatever it wraps."""
    package = module_of(code).partition(".")[0]
    return package if package in _LIBRARIES else None


def is_user_code(code: Any) -> bool:
    """Whether a piece of code is from no known library; see `module_of`."""
    return library_of(code) is None


def definitions(owner: object, name: str) -> list[Any]:
    """Lists what a call of a method may reach: the object's own attribute, and those of its classes."""
    return [vars(place)[name] for place in (owner, *type(owner).__mro__) if name in vars(place)]
