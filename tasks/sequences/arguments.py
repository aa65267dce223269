"""Arguments of builders that come from a recipe or a notebook, and may be of any kind."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from mixer.policies.shared.ranges import check_count


def check_between(name: str, value: Any, most: int, of_what: str) -> None:
    """Refuses what is no whole number from 1 to how many there are of something.

    Args:
        name: Name of the argument.
        value: Its value.
        most: The largest one that can be.
        of_what: What there are so many of.

    Raises:
        ValueError: If it is.
    """
    if not isinstance(value, (int, np.integer)):
        raise ValueError(f"{name} must be a whole number from 1 to the {most} {of_what}, got {value!r}.")
    if not 1 <= value <= most:
        raise ValueError(f"{name} must be between 1 and the {most} {of_what}, got {value}.")


def check_seed(name: str, seed: Any) -> None:
    """Refuses what is no seed.

    Args:
        name: Name of the argument.
        seed: Its value.

    Raises:
        ValueError: If it is no whole number, or below 0.
    """
    check_count(name, seed, 0, "0 does as well as any other")


def listed(name: str, given: Any, example: str) -> list[Any]:
    """Makes a list of what has to be several things.

    Args:
        name: Name of the argument.
        given: Its value.
        example: A value that would do.

    Returns:
        The list.

    Raises:
        ValueError: If it is one thing: a number, or text.
    """
    is_one = isinstance(given, (str, bytes, Mapping)) or getattr(given, "ndim", 1) == 0
    if is_one or not isinstance(given, Iterable):
        raise ValueError(f"{name} must be a list, such as {example}, got {given!r}.")
    return list(given)
