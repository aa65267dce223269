"""Errors of a part, told again by what calls it: with the place in the recipe, and the facts that the part gave."""

import contextlib
from collections.abc import Iterator
from typing import Any

from mixer.utils.errors import InvalidTypeError, InvalidValueError

_FACTS = ("option", "stream", "expected", "found", "hint")


def retold(error: Exception, message: str, **facts: Any) -> InvalidValueError | InvalidTypeError:
    """Makes an error with another message, and the facts of the first that are not given anew."""
    kind = InvalidTypeError if isinstance(error, InvalidTypeError) else InvalidValueError
    own = {name: getattr(error, name, None) for name in _FACTS}
    return kind(message, **{**own, **facts})


@contextlib.contextmanager
def placed(place: str) -> Iterator[None]:
    """Puts a place of a recipe before the sentences and the options of errors.

    The option of an error about the rows of a stream is a column or a file, and stays.

    Args:
        place: The place, such as `streams.web` or `model`.

    Example:
        >>> with placed("model.lora"):
        ...     raise ValueError("it has no layers")
        Traceback (most recent call last):
        mixer.utils.errors.InvalidValueError: model.lora: it has no layers
    """
    try:
        yield
    except (OSError, ValueError, TypeError, KeyError, ImportError) as error:
        text, option = str(error), getattr(error, "option", None)
        is_of_rows = getattr(error, "stream", None) is not None
        is_joined = option is not None and not is_of_rows and text.startswith(option)
        message = f"{place}.{text}" if is_joined else f"{place}: {text}"
        for kind in (FileNotFoundError, ConnectionError):
            if isinstance(error, kind):
                raise kind(message) from error
        own = place if option is None else option if is_of_rows else f"{place}.{option}"
        raise retold(error, message, option=own) from error
