"""Range checks of arguments."""

import math
from typing import Annotated, Any

import numpy as np

from mixer.utils.errors import wrong_value


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
