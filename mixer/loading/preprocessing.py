"""A stream's data set with every sample preprocessed as it is read."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import datasets
from torch.utils.data import Dataset, IterableDataset

from mixer.mixture.stream import is_iterable

Preprocess = Callable[[Any], Any]


def preprocessed(dataset: Any, preprocess: Preprocess | None) -> Any:
    """Gives a data set whose samples have gone through a function.

    Args:
        dataset: The data set: map-style or iterable.
        preprocess: Makes a sample of a sample; `None` for nothing.

    Returns:
        A data set of the same kind, which can give its state if that one can.
    """
    if preprocess is None:
        return dataset
    if isinstance(dataset, datasets.IterableDataset):
        # What the function does not give again is gone, as with any other data set.
        columns = dataset.column_names or list(next(iter(dataset)))
        return dataset.map(partial(_made_anew, preprocess), remove_columns=columns)
    if not is_iterable(dataset):
        return _Preprocessed(dataset, preprocess)
    has_state = all(callable(getattr(dataset, name, None)) for name in ("state_dict", "load_state_dict"))
    return (_StatefulRows if has_state else _PreprocessedRows)(dataset, preprocess)


def preprocessed_now(dataset: Any, preprocess: Preprocess | None) -> Any:
    """Gives a Hugging Face data set whose samples have gone through a function, once and for all.

    Args:
        dataset: The data set; rows of an iterable one go through it as they come.
        preprocess: Makes a sample of a sample; `None` for nothing.

    Returns:
        A data set of the same kind.
    """
    if preprocess is None or not isinstance(dataset, datasets.Dataset):
        return preprocessed(dataset, preprocess)
    return dataset.map(partial(_made_anew, preprocess), remove_columns=dataset.column_names)


def _made_anew(preprocess: Preprocess, sample: Any) -> dict[str, Any]:
    """Gives another object than the sample: of the sample itself columns are removed, though they may be new."""
    return dict(preprocess(sample))


class _Preprocessed(Dataset[Any]):
    """Samples that can be indexed."""

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
    """Rows that come in their own order."""

    def __init__(self, dataset: Any, preprocess: Preprocess):
        self.dataset, self.preprocess = dataset, preprocess

    def __iter__(self) -> Iterator[Any]:
        return map(self.preprocess, self.dataset)

    def set_epoch(self, epoch: int) -> None:
        if hasattr(self.dataset, "set_epoch"):
            self.dataset.set_epoch(epoch)


class _StatefulRows(_PreprocessedRows):
    """Rows of a data set that can go on from a state; preprocessing has none of its own."""

    def state_dict(self) -> Any:
        return self.dataset.state_dict()

    def load_state_dict(self, state: Any) -> None:
        self.dataset.load_state_dict(state)
