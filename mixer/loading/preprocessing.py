"""Applies a stream's `preprocess` function to samples when they are read."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import datasets
from torch.utils.data import Dataset, IterableDataset

from mixer.mixture.stream import is_iterable

Preprocess = Callable[[Any], Any]


def preprocessed(dataset: Any, preprocess: Preprocess | None) -> Any:
    """Wraps a dataset so that each sample passes through a function.

    Args:
        dataset: Map-style or iterable dataset.
        preprocess: Maps a sample to a sample; `None` for none.

    Returns:
        Dataset of the same kind, stateful if the original is.
    """
    if preprocess is None:
        return dataset
    if isinstance(dataset, datasets.IterableDataset):
        # Columns that the function does not return are dropped, as with any other dataset.
        columns = dataset.column_names or list(next(iter(dataset)))
        return dataset.map(partial(_made_anew, preprocess), remove_columns=columns)
    if not is_iterable(dataset):
        return _Preprocessed(dataset, preprocess)
    return _PreprocessedRows(dataset, preprocess)


def preprocessed_now(dataset: Any, preprocess: Preprocess | None) -> Any:
    """Applies a function to a Hugging Face dataset at once; rows of other datasets pass through it as they are read.

    Args:
        dataset: Dataset.
        preprocess: Maps a sample to a sample; `None` for none.

    Returns:
        Dataset of the same kind.
    """
    if preprocess is None or not isinstance(dataset, datasets.Dataset):
        return preprocessed(dataset, preprocess)
    return dataset.map(partial(_made_anew, preprocess), remove_columns=dataset.column_names)


def is_stateful(dataset: Any) -> bool:
    """Whether a dataset has `state_dict` and `load_state_dict`."""
    return callable(getattr(dataset, "state_dict", None)) and callable(getattr(dataset, "load_state_dict", None))


def _made_anew(preprocess: Preprocess, sample: Any) -> dict[str, Any]:
    """Returns a new object: from the sample itself `map` would remove columns even if the function set them anew."""
    return dict(preprocess(sample))


class _Preprocessed(Dataset[Any]):
    """Map-style dataset with preprocessing."""

    def __init__(self, dataset: Any, preprocess: Preprocess):
        self.dataset, self.preprocess = dataset, preprocess

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Any:
        return self.preprocess(self.dataset[index])

    def __getitems__(self, indices: list[int]) -> list[Any]:
        read: Callable[[list[int]], Sequence[Any]] | None = getattr(self.dataset, "__getitems__", None)
        samples = [self.dataset[index] for index in indices] if read is None else read(indices)
        return [self.preprocess(sample) for sample in samples]


class _PreprocessedRows(IterableDataset[Any]):
    """Iterable dataset with preprocessing, which adds no state."""

    def __init__(self, dataset: Any, preprocess: Preprocess):
        self.dataset, self.preprocess = dataset, preprocess

    def __iter__(self) -> Iterator[Any]:
        return map(self.preprocess, self.dataset)

    def __getattr__(self, name: str) -> Any:
        if name not in ("set_epoch", "state_dict", "load_state_dict"):
            raise AttributeError(name)
        return getattr(self.dataset, name)
