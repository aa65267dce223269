"""Figures in words, for captions and the table."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np


def listed(parts: Sequence[str]) -> str:
    """Joins parts to a list.

    Args:
        parts: At least one.

    Returns:
        The list.

    Example:
        >>> listed(["a", "b", "c"])
        'a, b and c'
    """
    return " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)


def shortened(parts: Sequence[str], most: int = 3) -> list[str]:
    """Counts the parts of a long list in place of telling them all.

    Args:
        parts: The parts.
        most: How many of them are told; one more is not left out for a count that is as long.

    Returns:
        The parts, or the first of them and how many more there are.

    Example:
        >>> shortened(["a", "b", "c", "d"]), shortened(["a", "b", "c", "d", "e"])
        (['a', 'b', 'c', 'd'], ['a', 'b', 'c', '2 more'])
    """
    return list(parts) if len(parts) <= most + 1 else [*parts[:most], f"{len(parts) - most:,} more"]


def between(values: Mapping[str, float], write: Callable[[float], str]) -> str:
    """Names the least and the greatest of some values.

    Args:
        values: By name, at least one, none of them NaN.
        write: Gives a value's text.

    Returns:
        The words.

    Example:
        >>> between({"math": 0.25, "code": 0.75}, "{:.0%}".format)
        'between 25% (math) and 75% (code)'
    """
    least, greatest = min(values, key=values.__getitem__), max(values, key=values.__getitem__)
    if write(values[least]) == write(values[greatest]):
        return f"{write(values[least])} ({'each' if len(values) > 1 else least})"
    return f"between {write(values[least])} ({least}) and {write(values[greatest])} ({greatest})"


def known(values: Mapping[str, float]) -> dict[str, float]:
    """Leaves out values that are not known.

    Args:
        values: By name, NaN where there is none.

    Returns:
        The others.
    """
    return {name: value for name, value in values.items() if not np.isnan(value)}


def rule_in_words(rule: Any) -> str:
    """Names a policy or schedule, and those within it.

    Args:
        rule: What `as_data` wrote.

    Returns:
        The names.

    Example:
        >>> rule_in_words({"class_path": "Floor", "init_args": {"policy": {"class_path": "PiKE"}, "minimum": 0.1}})
        'Floor(PiKE)'
    """
    if not isinstance(rule, Mapping) or "class_path" not in rule:
        return "a function" if isinstance(rule, Mapping) else str(rule)
    parts = rule.get("init_args", {}).values()
    rules = [part for value in parts for part in (value if isinstance(value, list) else [value])]
    inner = [rule_in_words(part) for part in rules if isinstance(part, Mapping) and "class_path" in part]
    return f"{rule['class_path']}({', '.join(inner)})" if inner else str(rule["class_path"])


def duration(seconds: float) -> str:
    """Writes a time in the units that suit it.

    Args:
        seconds: The time.

    Returns:
        The words.

    Example:
        >>> duration(4.21), duration(754.0), duration(7560.0)
        ('4.2 s', '12 min 34 s', '2 h 6 min')
    """
    if seconds < 60:
        return f"{seconds:.1f} s"
    if seconds < 3600:
        return f"{int(seconds // 60)} min {int(seconds % 60)} s"
    return f"{int(seconds // 3600)} h {int(seconds % 3600 // 60)} min"
