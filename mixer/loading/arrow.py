"""Reads rows of Hugging Face data sets straight from Arrow's memory.

`datasets` makes a table, a formatter and an object a value at every call. Columns of numbers and of lists of numbers
need none of them: a row is a slice of a NumPy array that already exists.
"""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray

from mixer.loading.collate import Columns
from mixer.utils.arrays import Int64Array

Views = Mapping[str, list[NDArray[Any]]]  # the numbers of each row, by column

_MOST_CHUNKS = 4_096  # whose memory is looked up once
_LISTS = (datasets.List, datasets.LargeList)
_FORMATS = (None, "numpy", "torch")


class _Column:
    """A column of numbers or of lists of numbers.

    Args:
        column: Chunks of the column.
    """

    def __init__(self, column: pa.ChunkedArray):
        self.is_list = not pa.types.is_primitive(column.type)
        self.is_float = pa.types.is_floating(column.type.value_type if self.is_list else column.type)
        self._column = column
        self._ends = np.cumsum([len(chunk) for chunk in column.chunks])
        self._chunks: dict[int, tuple[Any, NDArray[Any]]] = {}

    def rows(self, indices: Int64Array) -> list[NDArray[Any]] | None:
        """Returns the numbers of each row, as read-only views; `None` if a chunk has missing values."""
        if len(self._ends) == 1:
            chunks, places = itertools.repeat(0), indices.tolist()
        else:
            numbers = np.searchsorted(self._ends, indices, side="right")
            starts = np.concatenate([[0], self._ends])
            chunks, places = numbers.tolist(), (indices - starts[numbers]).tolist()
        rows = []
        for number, place in zip(chunks, places, strict=False):
            ends, values = self._chunks.get(number) or self._look_up(number)
            if ends is None:
                return None
            rows.append(values[ends[place] : ends[place + 1]])
        return rows

    def _look_up(self, number: int) -> tuple[Any, NDArray[Any]]:
        """Returns where the rows of a chunk start and end, and their numbers one after the other."""
        if len(self._chunks) >= _MOST_CHUNKS:
            self._chunks.clear()
        self._chunks[number] = found = _ends_and_values(self._column.chunk(number))
        return found


def _ends_and_values(chunk: pa.Array) -> tuple[Any, NDArray[Any]]:
    values = chunk if pa.types.is_primitive(chunk.type) else chunk.values
    if chunk.null_count or values.null_count:
        return None, np.empty(0)
    if values is chunk:
        ends: Any = range(len(chunk) + 1)
    elif pa.types.is_fixed_size_list(chunk.type):
        size = chunk.type.list_size
        ends = range(chunk.offset * size, (chunk.offset + len(chunk)) * size + 1, size)
    else:
        ends = chunk.offsets.to_numpy()
    return ends, values.to_numpy()


class ArrowRows:
    """Rows of a data set of numbers and lists of numbers, exactly as the data set itself gives them.

    Args:
        dataset: Data set that `of` accepts.
    """

    def __init__(self, dataset: datasets.Dataset):
        self._dataset, self._table, self._format = dataset, dataset.data, dataset.format
        self._kind = self._format["type"]  # None: Python's numbers and lists
        names = [name for name in dataset.column_names if name in self._format["columns"]]
        self._columns = {name: _Column(self._table.column(name)) for name in names}
        indices = dataset._indices  # noqa: SLF001  # has no public name
        self._indices = None if indices is None else _Column(indices.column(0))
        self._form = self._kind, {name: (column.is_list, column.is_float) for name, column in self._columns.items()}

    def __reduce__(self) -> tuple[Any, ...]:
        return ArrowRows, (self._dataset,)  # another process looks at its own memory

    @classmethod
    def of(cls, dataset: Any) -> "ArrowRows | None":
        """Returns the rows of a data set, or `None` if only the data set can read them."""
        if type(dataset) is not datasets.Dataset or not hasattr(dataset, "_indices"):
            return None
        how, schema, features = dataset.format, dataset.data.schema, dataset.features
        names, is_known = how["columns"], how["type"] in _FORMATS and not how["format_kwargs"]
        is_whole = not how["output_all_columns"] or len(names) == len(dataset.column_names)
        if not (names and is_known and is_whole):
            return None
        return cls(dataset) if all(_has_numbers(schema.field(name).type, features[name]) for name in names) else None

    def views(self, indices: Int64Array) -> Views | None:
        """Returns the numbers of rows by column; `None` if only the data set can read them."""
        if self._dataset.data is not self._table or self._dataset.format != self._format:
            return None  # changed in place since
        if self._indices is not None:
            places = self._indices.rows(indices)
            if not places:
                return None
            indices = np.concatenate(places, dtype=np.int64, casting="unsafe")
        views: dict[str, list[NDArray[Any]]] = {}
        for name, column in self._columns.items():
            rows = column.rows(indices)
            if rows is None:
                return None
            views[name] = rows
        return views

    def samples(self, views: Views) -> list[dict[str, Any]]:
        """Returns rows as `dataset.__getitems__` does."""
        columns = [self._formatted(rows, self._columns[name].is_list) for name, rows in views.items()]
        return [dict(zip(views, values, strict=True)) for values in zip(*columns, strict=True)]

    def _formatted(self, rows: list[NDArray[Any]], is_list: bool) -> Sequence[Any]:
        if self._kind is None:
            return [row.tolist() if is_list else row.item() for row in rows]
        tensors = _stacked(rows, is_list, torch.float32)
        each = [_tensor([row], torch.float32) for row in rows] if tensors is None else tensors.unbind()
        return each if self._kind == "torch" else [tensor.numpy()[()] for tensor in each]

    def stack(self, parts: Sequence[tuple["ArrowRows", Views]], allows_lists: bool) -> Columns | None:
        """Stacks rows by column as the default collator does, without a sample.

        Args:
            parts: Rows of data sets, these among them.
            allows_lists: Whether that collator makes tensors of Python's numbers and lists, too.

        Returns:
            For each column a tensor `[num_samples, ...]`, part by part; `None` if it needs samples.
        """
        label, is_plain = self._columns.get("label"), self._kind is None
        is_usual = "label_ids" not in self._columns and not (label and (label.is_list or "labels" in self._columns))
        can_stack = self._kind == "torch" or (is_plain and allows_lists)
        if not (is_usual and can_stack and all(rows._form == self._form for rows, _ in parts)):  # noqa: SLF001
            return None
        float_type, columns = torch.get_default_dtype() if is_plain else torch.float32, {}
        for name, column in self._columns.items():
            rows = list(itertools.chain.from_iterable(views[name] for _, views in parts))
            tensor = _stacked(rows, column.is_list, float_type)
            if tensor is None or not tensor.numel():
                return None
            columns[name] = tensor
        return columns


def _has_numbers(type_: pa.DataType, feature: Any) -> bool:
    """Whether a column holds numbers that NumPy shows without a copy, or lists of them."""
    if isinstance(feature, _LISTS):
        feature, type_ = feature.feature, getattr(type_, "value_type", pa.null())
    is_number = pa.types.is_floating(type_) or (pa.types.is_integer(type_) and type_ != pa.uint64())
    return is_number and isinstance(feature, (datasets.Value, datasets.ClassLabel))


def _stacked(rows: list[NDArray[Any]], is_list: bool, float_type: torch.dtype) -> torch.Tensor | None:
    if not is_list:
        return _tensor(rows, float_type)
    return _tensor(rows, float_type).view(len(rows), -1) if len(set(map(len, rows))) == 1 and len(rows[0]) else None


def _tensor(rows: list[NDArray[Any]], float_type: torch.dtype) -> torch.Tensor:
    """Copies rows to one tensor, one after the other; `datasets` gives integers as int64."""
    if rows[0].dtype.kind == "f":
        return torch.from_numpy(np.concatenate(rows)).to(float_type)
    return torch.from_numpy(np.concatenate(rows, dtype=np.int64))
