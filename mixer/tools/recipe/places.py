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
        begin = getattr(error, "place", None) or (None if is_of_rows else option)
        message = f"{place}.{text}" if begin and _begins(text, begin) else f"{place}: {text}"
        message = text if _begins(text, place) else message
        kind = next((kind for kind in (FileNotFoundError, ConnectionError) if isinstance(error, kind)), None)
        own = place if option is None else f"{place}.{option}"
        own = option if is_of_rows and option else own
        raised: Any = retold(error, message, option=own) if kind is None else kind(message)
        raised.option, raised.place = own, place  # for the place before
        raise raised from error


def _begins(text: str, place: str) -> bool:
    """Whether a sentence begins with a place, and not with a longer word."""
    return text.startswith(place) and not text[len(place) :][:1].strip(".:=[ ")
