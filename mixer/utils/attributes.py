"""Attributes of an object that hold for a while."""

import contextlib
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def attributes_held(owner: object, **values: Any) -> Iterator[None]:
    """Sets attributes of an object temporarily."""
    before = {name: getattr(owner, name) for name in values}
    vars(owner).update(values)
    try:
        yield
    finally:
        vars(owner).update(before)


@contextlib.contextmanager
def method_replaced(owner: object, name: str, function: Any) -> Iterator[None]:
    """Replaces a method of one object temporarily; the class keeps its own."""
    attributes = vars(owner)
    had, before = name in attributes, attributes.get(name)
    attributes[name] = function
    try:
        yield
    finally:
        if had:
            attributes[name] = before
        else:
            attributes.pop(name, None)
