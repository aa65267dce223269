"""Batches whose rows are no duplicates of each other, so that they can serve as each other's negatives."""

from collections.abc import Iterable, Sequence
from typing import Any

import datasets
import numpy as np

from mixer.loading.row_digest import digest, row_digests
from mixer.mixture.permutation import Permutation
from mixer.mixture.stream import Stream
from mixer.utils.arrays import Int64Array, UInt64Array
from mixer.utils.errors import InvalidValueError


class DistinctBatches:
    """Makes the batches of a pass: every row once, and no value of the columns twice in a batch.

    A row joins the first batch that is not full and comes after all batches that have one of its values. So batches are
    full but for the last ones, unless a value is in more rows than there are full batches.

    Args:
        stream: The stream, with `distinct_by`.

    Raises:
        ValueError: If a column is missing.
    """

    def __init__(self, stream: Stream):
        self._length, self._shuffle = stream.num_samples, stream.shuffle
        self._values = values_of(stream)

    def __call__(self, batch_size: int, number: int, seed: int) -> list[list[int]]:
        """Returns the batches of a pass, as lists of rows; see `Stream.batches`."""
        order = Permutation(self._length, seed, self._shuffle).indices(number * self._length, self._length)
        return apart(order, self._values.tolist(), batch_size)


def apart(order: Int64Array, values: Sequence[Iterable[int]], size: int) -> list[list[int]]:
    """Groups rows into batches without a common value.

    Args:
        order: int64 `[num_rows]`: the rows, in the order in which they join batches.
        values: The values of each row.
        size: Most rows of a batch.

    Example:
        >>> apart(np.array([0, 1, 2, 3]), [[7], [7], [8], [9]], size=2)
        [[0, 2], [1, 3]]
    """
    batches: list[list[int]] = []
    last: dict[int, int] = {}  # the last batch with a value
    later: dict[int, int] = {}  # of a full batch, a later one that may have room
    for row in order.tolist():
        own = set(values[row])
        place, passed = 1 + max((last.get(value, -1) for value in own), default=-1), []
        while place in later:
            passed.append(place)
            place = later[place]
        later.update(dict.fromkeys(passed, place))
        if place == len(batches):
            batches.append([])
        batches[place].append(row)
        last.update(dict.fromkeys(own, place))
        if len(batches[place]) == size:
            later[place] = place + 1
    return batches


def values_of(stream: Stream) -> UInt64Array:
    """Returns digests of what the rows of a stream may not have in common, uint64 `[num_rows, num_values]`.

    Args:
        stream: The stream, with `distinct_by`. Its data set is read as a whole.

    Raises:
        ValueError: If a column is missing.
    """
    rows, columns, dataset = np.arange(stream.num_samples), stream.distinct_by, stream.dataset
    if columns == "row" or columns is None:
        return row_digests(dataset, rows)[:, None]
    known = list(dataset.column_names if isinstance(dataset, datasets.Dataset) else dataset[0])
    if missing := sorted(set(columns) - set(known)):
        raise InvalidValueError(
            option="distinct_by", stream=stream.name, expected=f"columns of its rows, {known}", found=missing
        )
    return np.stack([_of_column(dataset, name, rows) for name in columns], axis=1)


def _of_column(dataset: Any, name: str, rows: Int64Array) -> UInt64Array:
    """Returns a digest of each value of a column; the same value has the same one in every column."""
    if isinstance(dataset, datasets.Dataset):
        column = dataset.select_columns([name])
        return row_digests(column if name == "value" else column.rename_column(name, "value"), rows)
    return np.array([digest(dataset[row][name]) for row in rows.tolist()], np.uint64)
