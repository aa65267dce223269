"""A stream: one data source of the mixture, under a name."""

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from torch.utils.data import IterableDataset

from mixer.policies.base import Mixture

_SPLIT_NAMES = frozenset({"train", "validation", "valid", "val", "dev", "eval", "test"})


@dataclass(frozen=True)
class Stream:
    """One data source of a mixture.

    Args:
        name: Name in logs, in the ledger and in weights given by name.
        dataset: A map-style data set: it has `__len__` and `__getitem__`. `__getitems__` is used where it is there.
        weight: Weight to start from. Give one to every stream or to none; without, adaptive policies start uniform.
        max_epochs: After so many passes over the data set the stream leaves the mixture; `None` repeats it without end.
        shuffle: Whether each epoch has a shuffled order of its own.
        seed: Key of the order; `None` derives one from the run's seed and the name.
        enters_at: Progress of the run, in [0, 1], at which the stream joins the mixture.
        leaves_at: Progress of the run at which it leaves.
        groups: The group of this stream in each grouping of the mixture, such as `{"language": "de", "domain":
            "code"}`.

    Raises:
        ValueError: If a value is outside its range or the data set is empty.
        TypeError: If the data set has no length or no indexing.
    """

    name: str
    dataset: Any = field(repr=False)
    weight: float | None = None
    max_epochs: float | None = None
    shuffle: bool = True
    seed: int | None = None
    enters_at: float = 0.0
    leaves_at: float = 1.0
    groups: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name.strip():
            raise ValueError(f"A stream needs a name that is not empty, got {self.name!r}.")
        if "/" in self.name:
            raise ValueError(f"Stream name {self.name!r}: '/' separates the parts of a log key, use another character.")
        _check_dataset(self.name, self.dataset)
        if self.weight is not None and not (math.isfinite(self.weight) and self.weight >= 0):
            raise ValueError(f"Stream {self.name!r}: weight must be a finite number of 0 or more, got {self.weight}.")
        if self.max_epochs is not None and not (math.isfinite(self.max_epochs) and self.max_samples):
            raise ValueError(
                f"Stream {self.name!r}: max_epochs must leave at least one of its {len(self.dataset)} samples, "
                f"got {self.max_epochs}. Use None for a stream that is repeated without end."
            )
        if not 0.0 <= self.enters_at < self.leaves_at <= 1.0:
            raise ValueError(
                f"Stream {self.name!r}: 0 <= enters_at < leaves_at <= 1 must hold (shares of the run), "
                f"got {self.enters_at} and {self.leaves_at}."
            )

    @property
    def num_samples(self) -> int:
        """Number of samples of the data set."""
        return len(self.dataset)

    @property
    def max_samples(self) -> int | None:
        """Number of samples after which the stream is exhausted, or `None`."""
        return None if self.max_epochs is None else max(0, round(self.max_epochs * self.num_samples))

    def order_key(self, run_seed: int) -> int:
        """Gives the key of the stream's order, the same on every rank and in every run with this seed.

        Args:
            run_seed: The run's seed, for a stream without one of its own.

        Returns:
            A signed 64-bit integer.
        """
        text = f"{run_seed}/{self.name}" if self.seed is None else f"{self.seed}"
        return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little", signed=True)


def as_streams(train_dataset: Any) -> list[Stream]:
    """Brings what a trainer is given as its training data into streams.

    Args:
        train_dataset: A mapping of names to data sets (`DatasetDict` too), a sequence of `Stream`, or one data set.

    Returns:
        The streams, in the given order; a single data set becomes the stream `"train"`.

    Raises:
        ValueError: If names are empty or occur twice, a data set is empty, or only some streams have a weight.
        TypeError: If a data set cannot be indexed.
    """
    if isinstance(train_dataset, Mapping):
        streams = [value if isinstance(value, Stream) else Stream(name, value) for name, value in train_dataset.items()]
        streams = [replace(stream, name=name) for name, stream in zip(train_dataset, streams, strict=True)]
    elif isinstance(train_dataset, Stream):
        streams = [train_dataset]
    elif isinstance(train_dataset, Sequence) and train_dataset and isinstance(train_dataset[0], Stream):
        streams = list(train_dataset)
    else:
        streams = [Stream("train", train_dataset)]
    _check_streams(streams)
    return streams


def describe(streams: Sequence[Stream]) -> Mixture:
    """Gives what a policy may know about the streams before the run.

    Args:
        streams: The streams of the mixture.

    Returns:
        Names, sizes and starting weights; the weights are uniform where the streams have none.
    """
    weights = np.array([1.0 if stream.weight is None else stream.weight for stream in streams])
    return Mixture(
        names=tuple(stream.name for stream in streams),
        num_samples=np.array([stream.num_samples for stream in streams], dtype=np.int64),
        weights=weights / weights.sum(),
    )


def _check_streams(streams: Sequence[Stream]) -> None:
    if not streams:
        raise ValueError("train_dataset holds no stream; give at least one data set.")
    for position, stream in enumerate(streams):
        if not isinstance(stream, Stream):
            raise TypeError(
                f"train_dataset[{position}] must be a Stream like the first entry, got {type(stream).__name__}."
            )
    names = [stream.name for stream in streams]
    if "other" in names:
        raise ValueError("The stream name 'other' is taken by the log entry loss/other; give the stream another name.")
    if len(names) > 1 and _SPLIT_NAMES.issuperset(names):
        raise ValueError(
            f"The streams {names} look like the splits of one data set; mixing them would train on held-out data. "
            "Pass the training split alone, or give the streams other names."
        )
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"Stream names must differ, but {twice} occur more than once.")
    without = [stream.name for stream in streams if stream.weight is None]
    if without and len(without) < len(streams):
        raise ValueError(f"Give a weight to every stream or to none; these have none: {without}.")
    if not without and not sum(stream.weight or 0.0 for stream in streams):
        raise ValueError("The weights of all streams are 0; at least one must be positive.")


def _check_dataset(name: str, dataset: Any) -> None:
    if isinstance(dataset, IterableDataset) or type(dataset).__name__ == "IterableDataset":
        raise TypeError(
            f"Stream {name!r}: iterable data sets are not supported yet. Load it as a map-style data set "
            "(streaming=False), or write it to disk and index it."
        )
    try:
        length = len(dataset)
        dataset.__getitem__  # noqa: B018
    except (TypeError, AttributeError):
        raise TypeError(
            f"Stream {name!r}: a data set needs __len__ and __getitem__, {type(dataset).__name__} has not both."
        ) from None
    if length == 0:
        raise ValueError(f"Stream {name!r}: the data set is empty.")
