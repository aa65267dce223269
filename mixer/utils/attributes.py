"""Attributes of an object that hold for a while."""

import contextlib
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def attributes_held(owner: object, **values: Any) -> Iterator[None]:
    """Sets attributes, or methods, of one object temporarily; its class keeps its own."""
    attributes = vars(owner)
    before = {name: attributes[name] for name in values if name in attributes}
    attributes.update(values)
    try:
        yield
    finally:
        for name in values.keys() - before.keys():
            attributes.pop(name, None)
        attributes.update(before)
