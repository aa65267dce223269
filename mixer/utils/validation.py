"""Checks of values, of functions, and of files that anybody may have written."""

import contextlib
import inspect
import json
import math
import stat
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from mixer.utils.arrays import FloatArray
from mixer.utils.text import shortened

MOST_JSON_BYTES = 512 * 2**20
MOST_LEVELS = 100
MOST_FLOAT = sys.float_info.max
# Of samples and steps: sums of some of them stay whole numbers of 64 bits.
MOST_COUNT = 2**56
MAX_SAMPLES_PER_STEP = 2**31 - 1
# What code raises that is given other data than it wrote.
DAMAGE = (
    AttributeError,
    LookupError,
    TypeError,
    ArithmeticError,
    AssertionError,
    RecursionError,
    MemoryError,
    BufferError,
)
_LONGEST_REASON = 200


def load_json(path: Path, most_bytes: int = MOST_JSON_BYTES) -> Any:
    """Reads a JSON file that may be anything.

    Args:
        path: The file.
        most_bytes: Size up to which it is read.

    Returns:
        Its content.

    Raises:
        OSError: If it cannot be read.
        ValueError: If it is no plain file, too large, or no JSON; too deep, with a key that stands twice or with a
            number that JSON has not.
    """
    return parse_json(read_bytes(path, most_bytes))


def parse_json(text: str | bytes) -> Any:
    """Reads JSON that may be anything.

    Args:
        text: The text.

    Returns:
        Its content.

    Raises:
        ValueError: As for `load_json`.
    """
    try:
        content = json.loads(text, parse_constant=_refuse_constant, object_pairs_hook=_each_once)
    except RecursionError:
        raise ValueError(f"it is nested more than {MOST_LEVELS} levels deep") from None
    _check_levels(content)
    return content


def read_bytes(path: Path, most_bytes: int) -> bytes:
    """Reads a plain file that is not too large.

    Args:
        path: The file.
        most_bytes: Size up to which it is read.

    Returns:
        Its content.

    Raises:
        OSError: If it cannot be read.
        ValueError: If it is no plain file, or larger.
    """
    check_plain(path, most_bytes)
    with path.open("rb") as file:
        content = file.read(most_bytes + 1)
    if len(content) > most_bytes:
        raise ValueError(_too_large(most_bytes))
    return content


def check_plain(path: Path, most_bytes: int | None = None) -> None:
    """Refuses what is not to be opened: a pipe or a device, which may never end, and what is too large.

    Args:
        path: The file, or a link to it.
        most_bytes: Size up to which it is read; `None` for any.

    Raises:
        OSError: If there is none.
        ValueError: If it is no plain file, or larger.
    """
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise ValueError("it is no plain file")
    if most_bytes is not None and status.st_size > most_bytes:
        raise ValueError(_too_large(most_bytes))


def _too_large(most_bytes: int) -> str:
    return f"it is larger than the {most_bytes:,} bytes that are read of such a file"


@contextlib.contextmanager
def refusing_damage(what: str) -> Iterator[None]:
    """Turns whatever goes wrong where saved data are taken up into one kind of error.

    Args:
        what: What is taken up, for the error: a clause such as `"the saved state of the streams"`.

    Yields:
        Nothing.

    Raises:
        ValueError: In place of what shows that the data are not what was written; other errors pass.
    """
    try:
        yield
    except DAMAGE as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise ValueError(f"{what} is damaged ({shortened(reason, _LONGEST_REASON)})") from error


def whole_number(value: Any, name: str, least: int = 0, most: int = 2**63 - 1) -> int:
    """Takes a count out of saved data.

    Args:
        value: What stands there.
        name: What it is, for the error.
        least: The least that it can be.
        most: The most.

    Returns:
        The number.

    Raises:
        ValueError: If it is no whole number, or out of these limits.
    """
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        found = shortened(repr(value), _LONGEST_REASON)
        raise ValueError(f"{name} must be a whole number from {least} to {most}, but {found} was saved")
    return value


def finite_number(value: Any, name: str, least: float = -math.inf, most: float = math.inf) -> float:
    """Takes a number out of saved data.

    Args:
        value: What stands there.
        name: What it is, for the error.
        least: The least that it can be.
        most: The most.

    Returns:
        The number.

    Raises:
        ValueError: If it is no number, not finite, or out of these limits.
    """
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not -MOST_FLOAT <= value <= MOST_FLOAT or not least <= value <= most:
        found = shortened(repr(value), _LONGEST_REASON)
        raise ValueError(f"{name} must be a number from {least} to {most}, but {found} was saved")
    return float(value)


def finite_numbers(values: Any, name: str, length: int | None = None) -> FloatArray:
    """Takes a list of numbers out of saved data.

    Args:
        values: What stands there.
        name: What they are, for the error.
        length: How many there must be; `None` for any number.

    Returns:
        float64 `[length]`.

    Raises:
        ValueError: If it is no list of so many finite numbers.
    """
    if not isinstance(values, list | tuple) or (length is not None and len(values) != length):
        number = "" if length is None else f"{length} "
        found = shortened(repr(values), _LONGEST_REASON)
        raise ValueError(f"{name} must be a list of {number}numbers, but {found} was saved")
    return np.array([finite_number(value, name) for value in values], dtype=np.float64)


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content: dict[str, Any] = {}
    for name, value in pairs:
        if name in content:
            raise ValueError(f"the key {name!r} stands twice")
        content[name] = value
    return content


def _refuse_constant(text: str) -> Any:
    raise ValueError(f"{text} is no number of JSON")


def _check_levels(content: Any) -> None:
    """Refuses what is nested so deep that code which walks through it would not come to an end."""
    level = [content]
    for _ in range(MOST_LEVELS):
        level = [part for whole in level if isinstance(whole, dict | list) for part in _parts(whole)]
        if not level:
            return
    raise ValueError(f"it is nested more than {MOST_LEVELS} levels deep")


def _parts(whole: dict[str, Any] | list[Any]) -> list[Any]:
    values = whole.values() if isinstance(whole, dict) else whole
    return [part for part in values if isinstance(part, dict | list)]


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
