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


class MethodReplaced:
    """Replaces a method of one object temporarily; the class keeps its own.

    Args:
        owner: The object.
        name: Name of the method.
        function: What takes its place.
    """

    def __init__(self, owner: object, name: str, function: Any):
        self._attributes, self._name, self._function = vars(owner), name, function

    def __enter__(self) -> None:
        self._before = self._attributes.get(self._name)
        self._attributes[self._name] = self._function

    def __exit__(self, *_: object) -> None:
        if self._before is None:
            self._attributes.pop(self._name, None)
        else:
            self._attributes[self._name] = self._before
