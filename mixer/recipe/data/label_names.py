"""Names of classes in an order that is the same wherever they are found."""

from collections.abc import Iterable
from typing import Any


def label_name(value: Any) -> str:
    """Gives the name of a class.

    Args:
        value: What stands for it in the data.

    Returns:
        It as text; the same for a whole number however it was stored.
    """
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def in_order(names: Iterable[str]) -> list[str]:
    """Sorts names of classes by the numbers that they are if all are some, else by the alphabet.

    Args:
        names: The names.

    Returns:
        They, each once.

    Example:
        >>> in_order(["10", "9"]), in_order(["10", "9", "none"])
        (['9', '10'], ['10', '9', 'none'])
    """
    distinct = set(names)
    try:
        numbers = {name: float(name) for name in distinct}
    except ValueError:
        return sorted(distinct)
    return sorted(distinct, key=lambda name: (numbers[name], name))
