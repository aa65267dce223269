"""Moments of samples, and those that data are cut at, brought to one kind: numbers, dates or text."""

import datetime
import decimal
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tasks.sources.labels import require_column

_KINDS: dict[str, tuple[type, ...]] = {
    "text": (str,),
    "dates": (datetime.date, np.datetime64),
    "numbers": (int, float, decimal.Decimal, np.number, np.bool_),
}
_OF_ARRAYS = {"b": "numbers", "i": "numbers", "u": "numbers", "f": "numbers", "M": "dates", "U": "text"}


def read_moments(
    train: Any, evaluation: Any, column: str, boundaries: Sequence[Any] | None
) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any] | None]:
    """Reads the moments of both parts, which can then be compared with each other and with boundaries.

    Dates go with text that is one (ISO 8601), and are compared as dates then, in UTC where zones are named.

    Args:
        train: The data set for training.
        evaluation: That for evaluation.
        column: The column of moments in both.
        boundaries: The moments that they are cut at, if they were given.

    Returns:
        The moments, `[num_samples]` each, and the boundaries.

    Raises:
        ValueError: If the column is missing, kinds do not go together, or text is no date.
    """
    found: dict[str, Any] = {called: require_column(part, column, called) for called, part in _parts(train, evaluation)}
    if boundaries is not None:
        found["boundaries"] = boundaries
    kinds = {name: _kinds_of(moments) for name, moments in found.items()}
    together = set().union(*kinds.values())
    if len(together) > 1 and together != {"dates", "text"}:
        told = ", ".join(f"{name} has {' and '.join(sorted(own))}" for name, own in kinds.items() if own)
        raise ValueError(
            f"by_time: moments of column {column!r} must be all numbers, or all dates or text, to be compared, but "
            f"{told}. Bring them to one kind: boundaries as the column has them, 3 rather than '3', or cast the column."
        )
    if "dates" in together:
        found = {name: _as_dates(moments, name, column) for name, moments in found.items()}
    if boundaries is not None:
        empty = found["train"].dtype if len(boundaries) == 0 else None
        found["boundaries"] = np.asarray(found["boundaries"], dtype=empty)
    return found["train"], found["evaluation"], found.get("boundaries")


def _parts(train: Any, evaluation: Any) -> Iterable[tuple[str, Any]]:
    return ("train", train), ("evaluation", evaluation)


def _kinds_of(moments: NDArray[Any] | Sequence[Any]) -> set[str]:
    known = _OF_ARRAYS.get(moments.dtype.kind) if isinstance(moments, np.ndarray) else None
    if known is not None:
        return {known} if len(moments) else set()
    types = {type(moment) for moment in moments}
    return {
        next((kind for kind, bases in _KINDS.items() if issubclass(one, bases)), f"values of type {one.__name__}")
        for one in types
    }


def _as_dates(moments: NDArray[Any] | Sequence[Any], called: str, column: str) -> NDArray[Any]:
    if isinstance(moments, np.ndarray) and moments.dtype.kind == "M":
        return moments
    try:
        read = pd.to_datetime(pd.Series(list(moments), dtype=object), utc=True, format="ISO8601")
    except ValueError as error:
        raise ValueError(
            f"by_time: moments of column {column!r} are compared as dates, but {called} has text that is none: "
            f"{str(error).splitlines()[0]} Write dates as 2024-01-31 or 2024-01-31T12:00."
        ) from error
    dates: NDArray[Any] = read.dt.tz_localize(None).to_numpy()
    return dates
