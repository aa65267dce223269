"""Checks of the arguments that users pass to a buffer."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from mixer.utils.arrays import Int64Array
from mixer.utils.errors import InvalidTypeError, InvalidValueError
from mixer.utils.text import safe_name


def as_names(option: str, names: Sequence[str] | None) -> tuple[str, ...] | None:
    """Checks names of streams.

    Args:
        option: What they were given as, for errors.
        names: The names, or `None`.

    Returns:
        The names as logs have them, each once.

    Raises:
        ValueError: If there are none of them.
        TypeError: If it is no list of names.
    """
    if names is None:
        return None
    example = [names] if isinstance(names, str) else ["new"]
    if isinstance(names, str) or not isinstance(names, Iterable) or not all(isinstance(name, str) for name in names):
        raise InvalidTypeError.about(option, f"must be a list of names, such as {example}, got {names!r}.")
    if not names:
        raise InvalidValueError.about(option, "must name a stream; None takes all, and is_online=False takes none.")
    return tuple(dict.fromkeys(map(safe_name, names)))


def as_whole_numbers(option: str, values: Iterable[int]) -> Int64Array:
    """Checks a list of whole numbers.

    Args:
        option: What it was given as, for errors.
        values: The numbers.

    Returns:
        int64 `[count]`.

    Raises:
        TypeError: If it is something else.
    """
    if isinstance(values, Iterable) and not isinstance(values, (str, bytes)):
        found = np.asarray(values if hasattr(values, "__array__") else list(values))
        if found.ndim == 1 and (found.dtype.kind in "iu" or not len(found)):
            return found.astype(np.int64)
    example = [values] if isinstance(values, int) else [0, 1]
    raise InvalidTypeError.about(option, f"must be a list of whole numbers, such as {example}, got {values!r}.")


def as_column(name: str, values: Any, count: int) -> NDArray[Any] | None:
    """Checks a column of values, one per sample.

    Args:
        name: `"labels"`, `"losses"` or `"features"`.
        values: The column, or `None`.
        count: Number of samples.

    Returns:
        int64 or float64 `[count]`, or `[count, num_features]`; `None` for `None`.

    Raises:
        ValueError: If it does not fit.
        TypeError: If it is no list or array.
    """
    if values is None:
        return None
    check_length(name, values, count)
    column = np.asarray(values.detach().cpu() if isinstance(values, torch.Tensor) else values)
    is_whole, num_axes = name == "labels", 2 if name == "features" else 1
    fits = column.dtype.kind in ("iub" if is_whole else "iubf") or not count
    if not fits or column.ndim != num_axes:
        kind = "whole numbers" if is_whole else "numbers"
        found = f"{column.dtype} of shape {list(column.shape)}"
        raise InvalidValueError.about(name, f"must be {kind} on {num_axes} axes, got {found}.")
    return column.astype(np.int64 if is_whole else np.float64)


def as_payloads(payloads: Mapping[str, Sequence[Any]] | None, count: int) -> dict[str, Sequence[Any]]:
    """Checks payloads, one entry per sample.

    Args:
        payloads: By name one entry per sample, or `None`.
        count: Number of samples.

    Returns:
        The same; empty for `None`.

    Raises:
        ValueError: If a length does not fit.
        TypeError: If it is no mapping of lists.
    """
    payloads = {} if payloads is None else payloads
    if not isinstance(payloads, Mapping):
        raise InvalidTypeError(option="payloads", expected="a mapping, such as {'logits': array}", found=payloads)
    for name, values in payloads.items():
        check_length(f"payloads[{name!r}]", values, count)
    return dict(payloads)


def check_length(name: str, values: Any, count: int) -> None:
    """Refuses a list without exactly one entry per sample.

    Args:
        name: What it was given as.
        values: The entries.
        count: Number of samples.

    Raises:
        ValueError: If there are more or fewer.
        TypeError: If it has no length.
    """
    if not hasattr(values, "__len__") or getattr(values, "ndim", 1) == 0:
        raise InvalidTypeError(option=name, expected="a list or array with one entry per sample", found=values)
    if len(values) != count:
        raise InvalidValueError.about(
            name, f"must have one entry per sample: {count}, got {len(values)}.", found=len(values)
        )
