"""The streams of a mixture, together."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import datasets
import numpy as np
from torch.utils.data import ConcatDataset, Dataset

from mixer.mixture.bad_samples import Skipping, new_skipping
from mixer.mixture.stream import Stream
from mixer.policies.base import Mixture

_SPLIT_NAMES = frozenset({"train", "validation", "valid", "val", "dev", "eval", "test"})


def as_streams(train_dataset: Any, called: str = "train_dataset") -> list[Stream]:
    """Brings what a trainer is given as its training data into streams.

    Args:
        train_dataset: A mapping of names to data sets (`DatasetDict` too), a sequence of `Stream`, or one data set.
        called: What to call it in an error.

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
    elif isinstance(train_dataset, (list, tuple)) and train_dataset and is_dataset(train_dataset[0]):
        raise TypeError(
            f"{called} is a list of {len(train_dataset)} data sets without names: give a dict of them, such as "
            '{"math": math, "code": code}, or a list of Stream.'
        )
    else:
        streams = [Stream("train", train_dataset)]
    _check_streams(streams, called)
    return streams


class StreamsDataset(Dataset[Any]):
    """Stands for all streams together where a single data set is asked for and some cannot be indexed.

    Args:
        parts: Their data sets.
        num_samples: What stands for its length, or `None` for none.
    """

    def __init__(self, parts: Sequence[Any], num_samples: int | None):
        self.parts = tuple(parts)
        self._num_samples = num_samples

    def __len__(self) -> int:
        if self._num_samples is None:
            raise TypeError("Nobody knows how many samples iterable streams have.")
        return self._num_samples


def combine(streams: Sequence[Stream], parts: Sequence[Any], epoch_size: int | None = None) -> Any:
    """Gives what stands for all streams where a single data set is asked for.

    Args:
        streams: The streams.
        parts: Their data sets.
        epoch_size: Samples of an epoch, if the user has said so.

    Returns:
        The data set of a single stream, the concatenation of several, or for iterable ones a stand-in; memories are
        left out.
    """
    if any(stream.is_iterable for stream in streams):
        known = sum(stream.num_samples for stream in streams)
        return StreamsDataset(parts, epoch_size or known or None)
    lasting = [part for stream, part in zip(streams, parts, strict=True) if not stream.is_memory]
    return lasting[0] if len(lasting) == 1 else ConcatDataset(lasting)


def total_max_samples(streams: Sequence[Stream]) -> int | None:
    """Counts the samples after which all streams are exhausted.

    Args:
        streams: The streams.

    Returns:
        Number of samples, or `None` if a stream has no end.
    """
    ends = [stream.max_samples for stream in streams]
    return None if None in ends else sum(end or 0 for end in ends)


def read_from(streams: Sequence[Stream], lasting: Mapping[str, Any] | None = None) -> list[Any]:
    """Gives what the samples of each stream are read from.

    Args:
        streams: The streams.
        lasting: Other data sets, by name, for those that are no memories; `None` takes their own.

    Returns:
        Their data sets, and for memories what finds samples there or in the buffer.
    """
    if lasting is None:
        lasting = {stream.name: stream.dataset for stream in streams if not stream.is_memory}
    return [stream.dataset.reader(lasting) if stream.is_memory else lasting[stream.name] for stream in streams]


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
        has_weights=streams[0].weight is not None,
        memories=tuple(number for number, stream in enumerate(streams) if stream.is_memory),
    )


def skipping_of(streams: Sequence[Stream], on_sample_error: str, max_skipped_share: float) -> Skipping:
    """Finds out which streams' broken samples are left out.

    What is left out of a stream cannot be replayed either: a memory that says nothing does as one of the streams does.

    Args:
        streams: The streams.
        on_sample_error: What is done for those that say nothing.
        max_skipped_share: Largest share of a stream's samples that may be left out.

    Returns:
        What becomes of broken samples.

    Raises:
        ValueError: If a value is none of the choices.
    """
    skipping = new_skipping(on_sample_error, max_skipped_share, [stream.on_sample_error for stream in streams])
    if not skipping:
        return skipping
    memories = {k for k, stream in enumerate(streams) if stream.is_memory and stream.on_sample_error is None}
    return replace(skipping, stream_ids=skipping.stream_ids | memories)


def is_dataset(value: Any) -> bool:
    """Says whether a value is a data set or a stream, and no single sample.

    Args:
        value: Anything.

    Returns:
        Whether it is one of torch's or of Hugging Face's data sets, or a `Stream`.
    """
    return isinstance(value, (Dataset, datasets.Dataset, datasets.IterableDataset, Stream))


def _check_streams(streams: Sequence[Stream], called: str) -> None:
    if not streams:
        raise ValueError(f"{called} holds no stream; give at least one data set.")
    for position, stream in enumerate(streams):
        if not isinstance(stream, Stream):
            raise TypeError(f"{called}[{position}] must be a Stream like the first entry, got {type(stream).__name__}.")
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
    if all(stream.is_memory for stream in streams):
        raise ValueError(
            f"{called}: the streams {names} are replay buffers, which remember samples of other streams; add those."
        )
    if not without and not sum(stream.weight or 0.0 for stream in streams):
        raise ValueError("The weights of all streams are 0; at least one must be positive.")
