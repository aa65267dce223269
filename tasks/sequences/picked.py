"""Some samples of a data set, without nesting: picking from what was picked goes back to the data set itself."""

from functools import cached_property
from typing import Any

import datasets
import numpy as np
import numpy.typing as npt
from torch.utils.data import Subset

from mixer.loading.reader import ColumnReader
from mixer.utils.arrays import Int64Array
from replay.storage.labels import read_labels
from tasks.sequences.relabelled import Relabelled
from tasks.sequences.transformed import Transformed
from tasks.sources.by_columns import ByColumns, Sample


class Picked(ByColumns):
    """Samples of a data set, by one flat array of indices however often it was picked from.

    Args:
        base: A data set that is read by columns.
        indices: int64 `[num_samples]`: which of its samples, in what order.

    Raises:
        IndexError: If there is no such sample.
    """

    def __init__(self, base: Any, indices: npt.ArrayLike):
        picked = _checked(base, indices)
        is_picked = isinstance(base, Picked)
        self.base: Any = base.base if is_picked else base
        self.indices: Int64Array = base.indices[picked] if is_picked else picked

    def __len__(self) -> int:
        return len(self.indices)

    @cached_property
    def labels(self) -> Int64Array | None:
        """The classes, int64 `[num_samples]`; `None` where samples have none."""
        return read_labels(self.base, self.indices)

    def read_columns(self, indices: Int64Array) -> Sample:
        """Reads several samples at once; see `ByColumns.read_columns`."""
        return dict(self.base.read_columns(self.indices[indices]))


def pick(dataset: Any, indices: npt.ArrayLike) -> Any:
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
        return Relabelled(pick(dataset.base, picked), dataset.labels[picked])
    if isinstance(dataset, ColumnReader):
        return Picked(dataset, picked)
    if type(dataset) is Subset:
        return pick(dataset.dataset, np.asarray(dataset.indices, dtype=np.int64)[picked])
    return Subset(dataset, picked.tolist())


def _checked(dataset: Any, indices: npt.ArrayLike) -> Int64Array:
    picked = np.asarray(indices)
    if picked.ndim != 1 or (picked.dtype.kind not in "iu" and len(picked)):
        raise TypeError(f"indices must be whole numbers on one axis, got {picked.dtype} of shape {list(picked.shape)}.")
    if len(picked) and not (picked.min() >= 0 and picked.max() < len(dataset)):
        worst = picked.min() if picked.min() < 0 else picked.max()
        raise IndexError(f"indices of {len(dataset)} samples count from 0, got {worst}.")
    return picked.astype(np.int64)
