"""Errors about what a user gave: a sentence, and the facts in it as attributes."""

from typing import Any, Self


class ErrorFacts(Exception):  # noqa: N818  # what errors have in common
    """What an error is about, for code that handles it and for tests; the sentence may change.

    Args:
        message: The sentence; `None` for one made of the facts.
        option: Name of the option, argument, column, key or file.
        stream: Name of the stream or evaluation set.
        expected: What was expected, as a phrase after "must be".
        found: What was found in its place.
        hint: What to do, as a whole sentence.

    Example:
        >>> error = InvalidValueError(option="batch_size", expected="an integer of at least 1", found=0)
        >>> str(error)
        'batch_size must be an integer of at least 1, got 0.'
        >>> error.option, error.found
        ('batch_size', 0)
    """

    def __init__(
        self,
        message: str | None = None,
        *,
        option: str | None = None,
        stream: str | None = None,
        expected: str | None = None,
        found: Any = None,
        hint: str | None = None,
    ):
        if message is None:
            owner = "" if stream is None else f" of the stream {stream!r}"
            message = f"{option}{owner} must be {expected}, got {found!r}."
            message += "" if hint is None else f" {hint}"
        super().__init__(message)
        self.option, self.stream, self.expected, self.found, self.hint = option, stream, expected, found, hint

    @classmethod
    def about(cls, option: str, text: str, **facts: Any) -> Self:
        """Makes an error whose sentence begins with the option.

        Args:
            option: Name of the option.
            text: The rest: a predicate (`must be positive, got 0.`), what follows a name directly (`=3 is too large.`,
                `['a'] is missing.`, `: one of them is enough.`), or a sentence of its own.
            **facts: The other facts.

        Example:
            >>> str(InvalidValueError.about("weight", "must be positive, got 0."))
            'weight must be positive, got 0.'
            >>> str(InvalidValueError.about("weight", "It must be positive, but 0 was given."))
            'weight: It must be positive, but 0 was given.'
        """
        between = "" if text[:1] in tuple("=[:") else " " if text[:1].islower() else ": "
        return cls(f"{option}{between}{text}", option=option, **facts)


class InvalidValueError(ErrorFacts, ValueError):
    """A value that cannot be taken."""


class InvalidTypeError(ErrorFacts, TypeError):
    """A value of another type than expected."""


wrong_value = InvalidValueError.about
wrong_type = InvalidTypeError.about


def require(holds: bool, option: str, expected: str, found: Any, hint: str | None = None) -> None:
    """Refuses the value of an option unless a condition holds.

    Args:
        holds: The condition.
        option: Name of the option.
        expected: What it must be, as a phrase after "must be".
        found: Its value.
        hint: What to do, as a whole sentence.

    Example:
        >>> require(2 >= 1, "window", "at least 1 loss", 2)
        >>> require(0 >= 1, "window", "at least 1 loss", 0)
        Traceback (most recent call last):
        mixer.utils.errors.InvalidValueError: window must be at least 1 loss, got 0.
    """
    if not holds:
        raise InvalidValueError(option=option, expected=expected, found=found, hint=hint)
