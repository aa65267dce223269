"""Views of a data set: selected samples, renumbered classes, transformed inputs."""

from collections.abc import Callable, Mapping
from functools import cached_property

import datasets
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import Subset

from mixer.loading.reader import ColumnReader
from mixer.utils.arrays import Int64Array
from mixer.utils.data_set import DataSet
from mixer.utils.errors import InvalidTypeError, InvalidValueError
from replay.storage.labels import read_labels
from tasks.sources.arrays import ByColumns, Sample
from tasks.sources.checks import check_map_style, label_column, require_labels

_LABELS = ("label", "labels")


# Changes inputs `[count, ...]`, each sample by itself and always in the same way: all random numbers are drawn before.
Transform = Callable[[Tensor], Tensor]


class _View(ByColumns):
    """Samples of a data set that is read by columns, `base`."""

    base: DataSet

    def __len__(self) -> int:
        return len(self.base)

    @cached_property
    def labels(self) -> Int64Array | None:
        """The classes, int64 `[num_samples]`; `None` where samples have none."""
        return read_labels(self.base)


class Transformed(_View):
    """A data set with transformed inputs.

    Args:
        base: A data set that is read by columns.
        transform: What is done to the inputs; it draws no random numbers.
        input_name: Their column; `None` takes the only one beside the labels.

    Raises:
        ValueError: If there is no such column, or it is not clear which.
        TypeError: If the data set is not read by columns.
    """

    def __init__(self, base: DataSet, transform: Transform, input_name: str | None = None):
        self.base, self.transform = base, transform
        self.input_name, _ = find_inputs(base, input_name)

    def read_columns(self, indices: Int64Array) -> Sample:
        """Reads several samples at once; see `ByColumns.read_columns`."""
        columns = dict(self.base.read_columns(indices))
        columns[self.input_name] = self.transform(columns[self.input_name])
        return columns


def find_inputs(
    dataset: DataSet, input_name: str | None = None, called: str = "A data set to transform"
) -> tuple[str, tuple[int, ...]]:
    """Returns the name of the input column, and the shape of one input.

    Raises:
        ValueError: If there is no such column, it is ambiguous, or there is no sample.
        TypeError: If the data set is not read by columns.
    """
    check_map_style(dataset, called)
    if len(dataset) == 0:
        raise InvalidValueError.about(called, "must have at least one sample, but is empty.")
    is_reader = isinstance(dataset, ColumnReader)
    if not is_reader:
        raise InvalidTypeError.about(called, f"must be read by columns, like Arrays, got {type(dataset).__name__}.")
    row: Mapping[str, Tensor] = dataset.read_columns(np.zeros(1, dtype=np.int64))
    columns = [name for name in row if name not in _LABELS]
    name = columns[0] if input_name is None and len(columns) == 1 else input_name
    if name not in columns:
        raise InvalidValueError.about("input_name", f"must be one of {columns}, got {input_name!r}.")
    return name, tuple(row[name].shape[1:])


class Relabelled(_View):
    """A data set with classes of its own.

    Args:
        base: A data set that is read by columns.
        labels: int64 `[num_samples]`: the classes.
    """

    def __init__(self, base: DataSet, labels: Int64Array):
        self.base, self.numbers, self._column = base, labels, label_column(base)
        self.labels = labels

    def read_columns(self, indices: Int64Array) -> Sample:
        """Reads several samples at once; see `ByColumns.read_columns`."""
        columns = dict(self.base.read_columns(indices))
        columns[self._column] = torch.from_numpy(self.numbers[indices])
        return columns


def relabel(dataset: DataSet, numbers: Mapping[int, int]) -> DataSet:
    """Gives classes other numbers.

    Args:
        dataset: A data set that is read by columns, or a Hugging Face one.
        numbers: The new number of each class.

    Returns:
        A data set of the same samples.

    Raises:
        ValueError: If the data set has no labels, or one of them no new number.
        TypeError: If it is of another kind.
    """
    labels = require_labels(dataset, "relabel")
    missing = sorted(set(np.unique(labels).tolist()) - set(numbers))
    if missing:
        raise InvalidValueError.about("relabel: numbers", f"must have a new one for every class, but lacks {missing}.")
    renumbered = np.array([numbers[label] for label in labels.tolist()], dtype=np.int64)
    if isinstance(dataset, datasets.Dataset):
        name = label_column(dataset)
        return dataset.remove_columns(name).add_column(name, renumbered)
    if isinstance(dataset, ColumnReader):
        return Relabelled(dataset, renumbered)
    raise InvalidTypeError.about("dataset", f"must be read by columns, like Arrays, got {type(dataset).__name__}.")


class Picked(_View):
    """Samples of a data set, by one flat array of indices however often it was picked from.

    Args:
        base: A data set that is read by columns.
        indices: int64 `[num_samples]`: which of its samples, in what order.

    Raises:
        IndexError: If there is no such sample.
    """

    def __init__(self, base: DataSet, indices: npt.ArrayLike):
        self.base, self.indices = base, _checked(base, indices)
        if isinstance(base, Picked):
            self.base, self.indices = base.base, base.indices[self.indices]

    def __len__(self) -> int:
        return len(self.indices)

    @cached_property
    def labels(self) -> Int64Array | None:
        """The classes, int64 `[num_samples]`; `None` where samples have none."""
        return read_labels(self.base, self.indices)

    def read_columns(self, indices: Int64Array) -> Sample:
        """Reads several samples at once; see `ByColumns.read_columns`."""
        return dict(self.base.read_columns(self.indices[indices]))


def pick(dataset: DataSet, indices: npt.ArrayLike) -> DataSet:
    """Picks samples of any map-style data set.

    Args:
        dataset: The data set.
        indices: int64 `[count]`: which of its samples, in what order.

    Returns:
        A data set of the same kind where it has a way of its own, else a `Picked` or a torch `Subset`. Transforms and
        numbers of classes are kept, on top of one flat array of indices.

    Raises:
        IndexError: If there is no such sample.
    """
    picked = _checked(dataset, indices)
    if isinstance(dataset, datasets.Dataset):
        return dataset.select(picked)
    if isinstance(dataset, Transformed):
        return Transformed(pick(dataset.base, picked), dataset.transform, dataset.input_name)
    if isinstance(dataset, Relabelled):
        return Relabelled(pick(dataset.base, picked), dataset.numbers[picked])
    if isinstance(dataset, ColumnReader):
        return Picked(dataset, picked)
    if type(dataset) is Subset:
        return pick(dataset.dataset, np.asarray(dataset.indices, dtype=np.int64)[picked])
    return Subset(dataset, picked.tolist())


def _checked(dataset: DataSet, indices: npt.ArrayLike) -> Int64Array:
    picked = np.asarray(indices)
    if picked.ndim != 1 or (picked.dtype.kind not in "iu" and len(picked)):
        raise InvalidTypeError.about("indices", f"must be whole numbers on one axis, got {picked.dtype}.")
    if len(picked) and not (picked.min() >= 0 and picked.max() < len(dataset)):
        worst = picked.min() if picked.min() < 0 else picked.max()
        raise IndexError(f"indices of {len(dataset)} samples count from 0, got {worst}.")
    return picked.astype(np.int64)
