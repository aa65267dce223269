"""Validation of values, of functions, and of files: sizes of all files that are read are bounded here."""

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
from mixer.utils.errors import InvalidValueError, wrong_type, wrong_value
from mixer.utils.text import shortened

MOST_JSON_BYTES = 512 * 2**20
MOST_FLOAT = sys.float_info.max
MOST_COUNT = 2**56  # of samples and steps: sums of some still fit 64-bit integers
MAX_SAMPLES_PER_STEP = 2**31 - 1
# Errors that code may raise on damaged data.
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


def load_json(path: Path) -> Any:
    """Reads a JSON file of at most `MOST_JSON_BYTES` bytes.

    Raises:
        OSError: If it cannot be read.
        ValueError: If it is not a regular file, too large, or not valid JSON, including NaN, Infinity, excessive
            nesting and keys that stand twice.
    """
    try:
        return json.loads(
            read_bytes(path, MOST_JSON_BYTES), parse_constant=_refuse_constant, object_pairs_hook=with_unique_keys
        )
    except RecursionError:
        raise ValueError("it has too many nested levels") from None


def with_unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Makes an object of JSON; raises a `ValueError` if a key appears twice, of which readers take one or the other."""
    content = dict(pairs)
    if len(content) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"the key {shortened(twice)!r} appears twice")
    return content


def read_bytes(path: Path, most_bytes: int) -> bytes:
    """Reads a regular file of at most `most_bytes` bytes.

    Raises:
        OSError: If it cannot be read.
        ValueError: If it is not a regular file, or larger.
    """
    check_plain(path, most_bytes)
    return path.read_bytes()


def check_plain(path: Path, most_bytes: int | None = None) -> None:
    """Refuses pipes and devices, which may never end, and files larger than `most_bytes`, if set.

    Raises:
        OSError: If the file does not exist.
        ValueError: If it is not a regular file, or larger.
    """
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise ValueError("it is not a regular file")
    if most_bytes is not None and status.st_size > most_bytes:
        raise ValueError(f"it is larger than the limit of {most_bytes:,} bytes")


@contextlib.contextmanager
def refusing_damage(what: str) -> Iterator[None]:
    """Turns errors that damaged data cause in the context into a `ValueError`; other errors pass.

    Args:
        what: Name of the data, such as `"the saved state of the streams"`.
    """
    try:
        yield
    except DAMAGE as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        text = f"{what} is damaged ({shortened(reason, _LONGEST_REASON)})"
        if isinstance(error, KeyError):  # an entry is missing
            text += ", or another version of adaptive-mixer wrote it: use that version, or start anew from the weights"
        raise InvalidValueError(text, option=what, found=reason) from error


def whole_number(value: Any, name: str, least: int = 0, most: int = 2**63 - 1) -> int:
    """Checks a count from saved data and returns it.

    Args:
        value: Saved value.
        name: Name for the error.
        least: Minimum.
        most: Maximum.

    Raises:
        ValueError: If it is not an integer within these limits.
    """
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        saved = shortened(repr(value), _LONGEST_REASON)
        raise wrong_value(name, f"must be a whole number from {least} to {most}, but {saved} was saved")
    return value


def finite_number(value: Any, name: str, least: float = -math.inf, most: float = math.inf) -> float:
    """Checks a number from saved data and returns it.

    Args:
        value: Saved value.
        name: Name for the error.
        least: Minimum.
        most: Maximum.

    Raises:
        ValueError: If it is not a finite number within these limits.
    """
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not -MOST_FLOAT <= value <= MOST_FLOAT or not least <= value <= most:
        saved = shortened(repr(value), _LONGEST_REASON)
        raise wrong_value(name, f"must be a number from {least} to {most}, but {saved} was saved")
    return float(value)


def finite_numbers(values: Any, name: str, length: int | None = None) -> FloatArray:
    """Checks a list of numbers from saved data and returns it as float64 `[length]`.

    Args:
        values: Saved list.
        name: Name for the error.
        length: Required length; `None` for any.

    Raises:
        ValueError: If it is not a list of finite numbers of this length.
    """
    if not isinstance(values, list | tuple) or (length is not None and len(values) != length):
        number = "" if length is None else f"{length} "
        saved = shortened(repr(values), _LONGEST_REASON)
        raise wrong_value(name, f"must be a list of {number}numbers, but {saved} was saved")
    return np.array([finite_number(value, name) for value in values], dtype=np.float64)


def finite_or_missing(values: Any, name: str, length: int) -> FloatArray:
    """Checks a list of numbers like `finite_numbers`, of which some may be missing: `None` becomes NaN."""
    are_missing = [value is None for value in values]
    numbers = finite_numbers([0.0 if value is None else value for value in values], name, length)
    return np.where(are_missing, np.nan, numbers)


def _refuse_constant(text: str) -> Any:
    raise ValueError(f"{text} is not a JSON number")


def check_takes(function: Callable[..., Any], parameters: tuple[str, ...], option: str) -> None:
    """Refuses a function that does not accept its positional arguments.

    Args:
        function: The function. Functions without a signature, such as built-in ones, are not checked.
        parameters: Names of the arguments.
        option: Name of the option that takes the function.

    Raises:
        TypeError: If its signature does not match.
    """
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return
    try:
        signature.bind(*parameters)
    except TypeError as error:
        call = f"f({', '.join(parameters)})"
        raise wrong_type(option, f": a function is called as {call}, this one takes {signature} ({error}).") from None
