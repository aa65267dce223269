"""Whether a function of the user's can be called as it will be."""

import inspect
from collections.abc import Callable
from typing import Any


def check_takes(function: Callable[..., Any], parameters: tuple[str, ...], where: str) -> None:
    """Refuses a function that does not take what it will be given by position.

    Args:
        function: The function. One that does not tell what it takes, as built-in ones, is not looked at.
        parameters: Names of what it will be given.
        where: What to call it in errors.

    Raises:
        TypeError: With what it takes instead.
    """
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return
    try:
        signature.bind(*parameters)
    except TypeError as error:
        raise TypeError(
            f"{where} is called as f({', '.join(parameters)}), but this one takes {signature} ({error}). Give it these "
            "parameters, unused ones too."
        ) from None
