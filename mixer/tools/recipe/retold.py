"""Errors told again by what calls a part, with the facts that the part gave."""

from typing import Any

from mixer.utils.errors import InvalidValueError


def retold(error: Exception, message: str, **facts: Any) -> InvalidValueError:
    """Makes an error with another message, and the facts of the first that are not given anew."""
    own = {name: getattr(error, name, None) for name in ("option", "stream", "expected", "found", "hint")}
    return InvalidValueError(message, **{**own, **facts})
