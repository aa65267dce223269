"""One data set as several streams: one for each value of a column, such as its `source` or `language`."""

import logging
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from mixer.mixture.stream import Stream, is_iterable, is_of, selected
from mixer.utils.arrays import Int64Array
from mixer.utils.data_set import DataSet
from mixer.utils.errors import require, wrong_type, wrong_value
from mixer.utils.ranges import check_count
from mixer.utils.text import safe_name, shortened

RARE = "rare"
_logger = logging.getLogger(__name__)


def streams_by_column(
    dataset: DataSet, column: str, *, values: Sequence[Any] | None = None, min_samples: int = 1, **options: Any
) -> list[Stream]:
    """Makes a stream of each value of a column, named by the value.

    Args:
        dataset: A data set of rows with the column. An iterable one must be a `datasets.IterableDataset`; each stream
            reads all of it and keeps its own rows.
        column: The column: texts, whole numbers or class labels.
        values: The values to take; rows of others are left out. `None` takes all, in the order of their first rows; an
            iterable data set needs them.
        min_samples: Values with fewer rows share one stream, `rare`.
        **options: Options of each `Stream`.

    Raises:
        ValueError: If the column is missing or has rows without a value, or values are missing or have equal names.
        TypeError: If the data set has no rows by column.

    Example:
        >>> from datasets import Dataset
        >>> rows = Dataset.from_dict({"source": ["web", "books", "web"], "text": ["a", "b", "c"]})
        >>> [(stream.name, len(stream.dataset)) for stream in streams_by_column(rows, "source")]
        [('web', 2), ('books', 1)]
    """
    _, parts = split_by_value(dataset, column, values, min_samples)
    return [Stream(name, rows, **options) for name, rows in parts.items()]


def split_by_value(
    dataset: DataSet,
    column: str,
    values: Sequence[Any] | None = None,
    min_samples: int = 1,
    called: str = "column",
) -> tuple[dict[Hashable, str], dict[str, Any]]:
    """Names the streams of a column's values, and splits the rows between them; see `streams_by_column`.

    Args:
        dataset: The data set.
        column: The column.
        values: The values to take.
        min_samples: Values with fewer rows share one stream.
        called: What the user calls the column, for errors.

    Returns:
        Names by value, and data sets by name.

    Raises:
        ValueError: If values are missing, or two have one name.
    """
    check_count("min_samples", min_samples, 1, "1 makes a stream of each value")
    if is_iterable(dataset):
        require(values is not None, "values", "given: those of an iterable data set are not known before", None)
        require(min_samples == 1, "min_samples", "1 for an iterable data set, whose rows are not counted", min_samples)
        names = _named(values or (), frozenset(), called)
        return names, rows_by_name(dataset, column, names)
    codes, found = coded = _coded(dataset, column, called)
    counts = dict(zip(found, np.bincount(codes, minlength=len(found)).tolist(), strict=True))
    missing = [value for value in values or () if value not in counts]
    if missing:
        raise wrong_value("values", f": no row has {missing} in {column!r}, which has {_some(found)}.", found=missing)
    chosen = found if values is None else list(values)
    names = _named(chosen, {value for value in chosen if counts[value] < min_samples}, called)
    return names, _selected(dataset, column, coded, names)


def rows_by_name(dataset: DataSet, column: str, names: Mapping[Any, str], called: str = "column") -> dict[str, Any]:
    """Splits a data set by the values of a column.

    Args:
        dataset: The data set.
        column: The column.
        names: A name for each value; rows of other values are left out, which a warning says.
        called: What the user calls the column, for errors.

    Returns:
        Data sets by name, without names that have no row.
    """
    if is_iterable(dataset):
        if not is_of(dataset, "datasets", "IterableDataset"):
            raise wrong_type("dataset", f"must be a datasets.IterableDataset to be filtered, got {type(dataset)}.")
        return {name: dataset.filter(partial(_has_value, column, value)) for value, name in names.items()}
    return _selected(dataset, column, _coded(dataset, column, called), names)


def _selected(
    dataset: DataSet, column: str, coded: tuple[Int64Array, list[Any]], names: Mapping[Any, str]
) -> dict[str, Any]:
    codes, found = coded
    left_out = [value for value in found if value not in names]
    if left_out:
        words = "Rows with %s in %r are left out: these values are none of a stream."
        _logger.warning(words, _some(left_out), column)
    order = list(dict.fromkeys(names.values()))
    numbers = {name: number for number, name in enumerate(order)}
    targets = np.array([numbers[names[value]] if value in names else len(order) for value in found], dtype=np.int64)
    parts = _places(targets[codes], len(order))
    return {name: selected(dataset, places) for name, places in zip(order, parts, strict=True) if len(places)}


def _places(numbers: Int64Array, count: int) -> list[Int64Array]:
    """Returns the places of each number below `count`, in ascending order."""
    ends = np.cumsum(np.bincount(numbers, minlength=count + 1)[:count])
    return np.split(np.argsort(numbers, kind="stable"), ends)[:count]


def _coded(dataset: DataSet, column: str, called: str) -> tuple[Int64Array, list[Any]]:
    """Returns the number of each row's value, `[num_rows]`, and the values."""
    values = _column(dataset, column, called)
    codes, found = pd.factorize(pd.Series(values, dtype=object))
    num_missing = int((codes < 0).sum())
    if num_missing:
        text = f": {num_missing:,} of {len(codes):,} rows have no value in {column!r}. Fill it, or filter them out."
        raise wrong_value(called, text, found=num_missing)
    kinds = {type(value) for value in found}
    if not kinds <= {str, int, bool}:
        names = sorted(kind.__name__ for kind in kinds)
        raise wrong_value(called, f": {column!r} has {names}, not texts, whole numbers or classes.", found=names)
    return codes.astype(np.int64), list(found)


def _column(dataset: DataSet, column: str, called: str) -> Sequence[Any]:
    names = getattr(dataset, "column_names", None)
    if names is None:
        first = dataset[0]
        if not isinstance(first, Mapping):
            raise wrong_type("dataset", f"must have rows with columns, got {type(first).__name__}.")
        names = list(first)
    require(column in names, called, f"one of {names}", column)
    if not is_of(dataset, "datasets", "Dataset"):
        return [dataset[place][column] for place in range(len(dataset))]
    read = dataset.select_columns([column]).with_format("arrow")[:][column].to_pylist()
    feature = dataset.features[column]
    if not hasattr(feature, "int2str"):
        return read  # type: ignore[no-any-return]
    return [None if number is None else feature.int2str(number) for number in read]


def _named(values: Iterable[Any], rare: Iterable[Any], called: str) -> dict[Hashable, str]:
    rare = frozenset(rare)
    names = {value: RARE if value in rare else safe_name(str(value)) for value in values}
    own = Counter(name for value, name in names.items() if value not in rare)
    twice = sorted(name for name, count in own.items() if count > 1 or (rare and name == RARE))
    if twice:
        raise wrong_value(called, f": several of its values make streams named {twice}.", found=twice)
    return names


def _has_value(column: str, value: Any, row: Mapping[str, Any]) -> bool:
    return bool(row[column] == value)


def _some(values: Sequence[Any]) -> str:
    return shortened(", ".join(map(repr, values)))
