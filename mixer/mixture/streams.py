"""The streams of a mixture together: from data sets to streams, as one data set, as policies see them; their checks."""

import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, get_args

import numpy as np

from mixer.mixture.bad_samples import OnSampleError, Skipping
from mixer.mixture.split_names import find_held_out
from mixer.mixture.stream import LIBRARIES, Stream, is_of
from mixer.policies.contract import Mixture
from mixer.utils.errors import wrong_type, wrong_value
from mixer.utils.ranges import check_choice, check_range
from mixer.utils.text import safe_name, safe_names

logger = logging.getLogger(__name__)


def as_streams(train_dataset: Any, called: str = "train_dataset") -> list[Stream]:
    """Converts a trainer's training data to streams.

    Args:
        train_dataset: Mapping of names to datasets (including `DatasetDict`), sequence of `Stream`, or a single
            dataset.
        called: Name of the argument, for errors.

    Returns:
        Streams in input order; a single dataset becomes the stream `"train"`.

    Raises:
        ValueError: If names are empty or repeated, a dataset is empty, or only some streams have a weight.
        TypeError: If a dataset cannot be indexed.
    """
    if isinstance(train_dataset, Mapping):
        given, train_dataset = list(train_dataset), safe_names(train_dataset, called)
        _tell_of_safe(given)
        streams = [value if isinstance(value, Stream) else Stream(name, value) for name, value in train_dataset.items()]
        pairs = zip(train_dataset, streams, strict=True)
        streams = [stream if stream.name == name else replace(stream, name=name) for name, stream in pairs]
    elif isinstance(train_dataset, Stream):
        streams = [train_dataset]
    elif isinstance(train_dataset, Sequence) and train_dataset and isinstance(train_dataset[0], Stream):
        streams = list(train_dataset)
    elif isinstance(train_dataset, (list, tuple)) and train_dataset and is_dataset(train_dataset[0]):
        raise wrong_type(
            called, "has data sets without names: use a dict, such as {'math': math, 'code': code}, or Streams."
        )
    else:
        streams = [Stream("train", train_dataset)]
    _check_streams(streams, called)
    return streams


def _tell_of_safe(names: Iterable[Any]) -> None:
    safe = {name: safe_name(name) for name in names if safe_name(name) != name}
    if safe:
        told = ", ".join(f"{name!r} is {form!r}" for name, form in safe.items())
        logger.warning("Names of streams in logs, columns and files: %s. Options by name take both.", told)


class StreamsDataset:
    """Placeholder for all streams where a single dataset is required and some cannot be indexed.

    Args:
        parts: Datasets of the streams.
        num_samples: Its length, or `None` for none.
    """

    def __init__(self, parts: Sequence[Any], num_samples: int | None):
        self.parts = tuple(parts)
        self._num_samples = num_samples

    def __len__(self) -> int:
        if self._num_samples is None:
            raise TypeError("The length of iterable streams is unknown.")
        return self._num_samples


def combine(streams: Sequence[Stream], parts: Sequence[Any], length: int | None = None) -> Any:
    """Combines all streams into a single dataset.

    Args:
        streams: Streams.
        parts: Their datasets.
        length: Length to show if one is iterable; `None` for none.

    Returns:
        The dataset of a single stream, the concatenation of several, or a placeholder for iterable ones; memories are
        excluded.
    """
    if any(stream.is_iterable for stream in streams):
        return StreamsDataset(parts, length)
    lasting = [part for stream, part in zip(streams, parts, strict=True) if not stream.is_memory]
    if len(lasting) == 1:
        return lasting[0]
    from torch.utils.data import ConcatDataset

    return ConcatDataset(lasting)


def total_samples(streams: Sequence[Stream]) -> int | None:
    """Returns the samples after which all streams are exhausted, or `None` if a stream has no end in samples."""
    ends = [stream.end for stream in streams]
    return None if None in ends else sum(end or 0 for end in ends)


def read_from(streams: Sequence[Stream], lasting: Mapping[str, Any] | None = None) -> list[Any]:
    """Returns the dataset to read each stream from.

    Args:
        streams: Streams.
        lasting: Datasets by name, to replace those of streams other than memories; `None` uses their own.

    Returns:
        Datasets, and readers for memories.
    """
    if lasting is None:
        lasting = {stream.name: stream.dataset for stream in streams if not stream.is_memory}
    return [stream.dataset.reader(lasting) if stream.is_memory else lasting[stream.name] for stream in streams]


def describe(streams: Sequence[Stream]) -> Mixture:
    """Describes the streams to a policy; weights are uniform for streams without any."""
    weights = np.array([1.0 if stream.weight is None else stream.weight for stream in streams])
    return Mixture(
        names=tuple(stream.name for stream in streams),
        num_samples=np.array([stream.num_samples for stream in streams], dtype=np.int64),
        weights=weights / weights.sum(),
        has_weights=streams[0].weight is not None,
        memories=tuple(number for number, stream in enumerate(streams) if stream.is_memory),
        ends=np.array([np.inf if stream.end is None else float(stream.end) for stream in streams]),
    )


def skipping_of(streams: Sequence[Stream], on_sample_error: str, max_skipped_share: float) -> Skipping:
    """Determines which streams' broken samples are skipped.

    Skipped samples cannot be replayed either: a memory without its own setting skips if any stream does.

    Args:
        streams: Streams.
        on_sample_error: Default for streams without their own setting.
        max_skipped_share: Maximum fraction of a stream's samples that may be skipped.

    Raises:
        ValueError: If a value is invalid.
    """
    check_choice("on_sample_error", on_sample_error, get_args(OnSampleError))
    check_range("max_skipped_share", max_skipped_share, 0.0, 1.0, "it is a share of a stream's samples")
    chosen = [stream.on_sample_error or (None if stream.is_memory else on_sample_error) for stream in streams]
    default = "skip" if "skip" in chosen else on_sample_error
    ids = frozenset(k for k, choice in enumerate(chosen) if (choice or default) == "skip")
    return Skipping(ids, float(max_skipped_share))


def is_dataset(value: Any) -> bool:
    """Whether a value is a dataset or a `Stream`, as opposed to a single sample."""
    of_library = any(is_of(value, library, "Dataset", "IterableDataset") for library in LIBRARIES)
    return of_library or isinstance(value, Stream)


def _check_streams(streams: Sequence[Stream], called: str) -> None:
    if not streams:
        raise wrong_value(called, "has no streams; at least one dataset is required.")
    for position, stream in enumerate(streams):
        if not isinstance(stream, Stream):
            raise wrong_type(
                called, f"[{position}] must be a Stream like the first entry, got {type(stream).__name__}."
            )
    names = [stream.name for stream in streams]
    if "other" in names:
        raise wrong_value(
            "name", "The stream name 'other' is reserved for the log entry loss/other; rename the stream."
        )
    if held_out := find_held_out(names):
        raise wrong_value(
            called,
            f"The streams {held_out} look like held-out splits of a dataset that other streams are splits of, too: "
            "mixing them would train on held-out data. Pass the training splits only, or rename the streams if they "
            "are sources of their own.",
        )
    twice = sorted(name for name, count in Counter(names).items() if count > 1)
    if twice:
        raise wrong_value("name", f"Stream names must be unique, but {twice} occur more than once.", found=twice)
    without = [stream.name for stream in streams if stream.weight is None]
    if 0 < len(without) < len(streams):
        raise wrong_value("weight", f"Set a weight for every stream or for none; these have none: {without}.")
    if all(stream.is_memory for stream in streams):
        raise ValueError(
            f"{called}: the streams {names} are replay buffers, which hold samples of other streams; add those."
        )
    if not without and not sum(stream.weight or 0.0 for stream in streams):
        raise wrong_value("weight", "The weights of all streams are 0; at least one must be positive.")
