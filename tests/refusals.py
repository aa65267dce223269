"""Errors that name what they are about."""

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

from mixer.utils.errors import InvalidValueError


@contextlib.contextmanager
def refused(option: str | None = None, kind: Any = InvalidValueError, **facts: Any) -> Iterator[Any]:
    """Expects an error of a kind about an option, with the facts that are given; yields what `pytest.raises` does."""
    with pytest.raises(kind) as caught:
        yield caught
    found = {name: getattr(caught.value, name) for name in ("option", *facts)}
    assert found == {"option": option, **facts}, caught.value
