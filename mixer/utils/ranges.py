"""Options of policies and schedules, declared with their checks, and the checks: choices and ranges."""

import math
from dataclasses import fields
from typing import Annotated, Any, Literal, get_args, get_origin

import numpy as np

from mixer.utils.errors import wrong_value


def check_options(rule: Any) -> None:
    """Checks the options of an object; `None` passes if it is the default.

    A `Literal` lists the valid values. `Annotated[type, check, *arguments]` calls `check(name, value, *arguments)`.

    Raises:
        ValueError: If a value is not valid; a check may raise other errors.
    """
    for option in fields(rule):
        value, kind = getattr(rule, option.name), option.type
        if value is None and option.default is None:
            continue
        if get_origin(kind) is Literal:
            check_choice(option.name, value, get_args(kind))
        elif get_origin(kind) is Annotated:
            check, *arguments = get_args(kind)[1:]
            check(option.name, value, *arguments)


def check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    """Refuses a value that is none of two or more choices.

    Raises:
        ValueError: If it is another one.
    """
    if value not in choices:
        *most, last = map(repr, choices)
        raise wrong_value(name, f"must be {', '.join(most)} or {last}, got {value!r}.")


def check_range(name: str, value: float, least: float, most: float, hint: str) -> None:
    """Refuses a value outside its range.

    Args:
        name: Name of the argument.
        value: Its value.
        least: Smallest valid value.
        most: Largest valid value; `inf` for any finite one.
        hint: The effect of sensible values, for the error.

    Raises:
        ValueError: If the value is outside, infinite, NaN or no number.
    """
    if not (is_number(value) and least <= value <= most and math.isfinite(value)):
        bounds = f"{least} or more" if most == math.inf else f"in [{least}, {most}]"
        raise wrong_value(name, f"must be {bounds}, got {_shown(value)}; {hint}.")


def check_decay(name: str, value: float, hint: str) -> None:
    """Refuses a decay outside [0, 1): 1 would ignore all new values.

    Raises:
        ValueError: If the value is outside [0, 1), NaN or no number.
    """
    if not (is_number(value) and 0.0 <= value < 1.0):
        raise wrong_value(name, f"must be in [0, 1), got {_shown(value)}; {hint}.")


def check_temperature(name: str, value: float, hint: str) -> None:
    """Refuses a temperature that is not positive; infinity is valid.

    Raises:
        ValueError: If it is not above 0, NaN or no number.
    """
    if not (is_number(value) and value > 0.0):
        raise wrong_value(name, f"must be above 0, got {_shown(value)}; {hint}.")


def check_count(name: str, value: int, least: int, hint: str) -> None:
    """Refuses a value that is no whole number, or too small.

    Raises:
        ValueError: If it is.
    """
    if not (isinstance(value, (int, np.integer)) and is_number(value)) or value < least:
        raise wrong_value(name, f"must be a whole number, {least} or more, got {_shown(value)}; {hint}.")


IntervalSteps = Annotated[int, check_count, 1, "1 decides after every step"]
MinSamples = Annotated[int, check_count, 0, "with less than 2 a variance may not be measured again"]


def is_number(value: Any) -> bool:
    """Whether a value is a number; `True` and `False` are none."""
    return isinstance(value, (int, float, np.number)) and not isinstance(value, bool)


def _shown(value: Any) -> str:
    return repr(value) if isinstance(value, str) else str(value)
