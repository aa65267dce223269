"""A stream: one named data source of the mixture, and checks of several together."""

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import datasets
import numpy as np
from torch.utils.data import ConcatDataset, Dataset, IterableDataset

from mixer.mixture.bad_samples import OnSampleError, Skipping, check_choice, new_skipping
from mixer.mixture.cursor import GrowingDataset
from mixer.policies.contract import Mixture


@dataclass(frozen=True)
class Stream:
    """One data source of a mixture.

    Args:
        name: Name in logs, in the ledger and in weights given by name.
        dataset: A map-style data set: it has `__len__` and `__getitem__`. `__getitems__` is used where it is there. Or
            an iterable one, whose rows come in its own order; how many there are shows when it ends. Or a replay
            buffer, which remembers samples of the other streams.
        weight: Weight to start from. Give one to every stream or to none; without, adaptive policies start uniform.
        max_epochs: After so many passes over the data set the stream leaves the mixture; `None` repeats it without end.
            A whole number for an iterable data set.
        shuffle: Whether each epoch has a shuffled order of its own; without effect on an iterable data set.
        seed: Key of the order; `None` derives one from the run's seed and the name.
        enters_at: Progress of the run, in [0, 1], at which the stream joins the mixture.
        leaves_at: Progress of the run at which it leaves.
        is_random: Whether reading a sample draws random numbers. `None` finds out, which a data set defeats that puts
            the global generators back after drawing, or keeps what it drew: say `True` for it.
        groups: The group of this stream in each grouping of the mixture, such as `{"language": "de", "domain":
            "code"}`.
        preprocess: Makes of a sample what the collator takes, each time that it is read, in the workers if there are
            any. It sees all columns. Where it draws random numbers, they are the sample's own.
        data_collator: Makes micro-batches of this stream's samples, in place of the trainer's.
        label_names: The columns that are this stream's labels, in place of the training arguments' `label_names`.
        compute_loss_func: The loss of this stream, as the Trainer takes one: `f(outputs, labels, num_items_in_batch)`.
        head: What a model with one head per task is told as `task`; `None` tells it the stream's name, if its forward
            takes a `task`.
        loss_weight: A factor on this stream's loss, beside how often its samples come. Logs show the loss without it.
        on_sample_error: What to do when a sample of it cannot be loaded, in place of the trainer's `on_sample_error`.
        content: By what the samples are known again: a run that was saved goes on only with the same text. `None`
            compares how many there are; without effect on an iterable data set.

    A stream whose collator, labels, loss or head is its own has micro-batches of its own. Where losses or heads
    differ, their terms are of different kinds (a sentence here, a token there), so that a stream counts by its samples
    and not by its terms: the loss of a step is the sum of the streams' means times their shares of its samples.

    Raises:
        ValueError: If a value is outside its range or the data set is empty.
        TypeError: If the data set can neither be indexed nor iterated anew, or a value is no number.
    """

    name: str
    dataset: Any = field(repr=False)
    weight: float | None = None
    max_epochs: float | None = None
    shuffle: bool = True
    seed: int | None = None
    enters_at: float = 0.0
    leaves_at: float = 1.0
    is_random: bool | None = None
    groups: Mapping[str, str] = field(default_factory=dict)
    preprocess: Callable[[Any], Any] | None = None
    data_collator: Callable[[list[Any]], Any] | None = None
    label_names: Sequence[str] | None = None
    compute_loss_func: Callable[..., Any] | None = None
    head: str | None = None
    loss_weight: float = 1.0
    content: str | None = None
    on_sample_error: OnSampleError | None = None

    def __post_init__(self) -> None:
        self._check_name()
        if self.on_sample_error is not None:
            check_choice(self.on_sample_error, f"Stream {self.name!r}: on_sample_error")
        _check_dataset(self)
        self._check_numbers()
        self._check_specifics()
        if self.weight is not None and not (math.isfinite(self.weight) and self.weight >= 0):
            raise ValueError(f"Stream {self.name!r}: weight must be a finite number of 0 or more, got {self.weight}.")
        self._check_epochs()
        if not 0.0 <= self.enters_at < self.leaves_at <= 1.0:
            raise ValueError(
                f"Stream {self.name!r}: 0 <= enters_at < leaves_at <= 1 must hold (shares of the run), "
                f"got {self.enters_at} and {self.leaves_at}."
            )

    def _check_name(self) -> None:
        if not isinstance(self.name, str) or not self.name.strip():
            raise ValueError(f"A stream needs a name that is not empty, got {self.name!r}.")
        if not self.name.isprintable():
            raise ValueError(f"Stream name {self.name!r}: it is shown on terminals, use printable characters.")
        if "/" in self.name:
            raise ValueError(f"Stream name {self.name!r}: '/' separates the parts of a log key, use another character.")

    def _check_epochs(self) -> None:
        if self.is_memory and self.max_epochs is not None:
            raise ValueError(
                f"Stream {self.name!r}: a memory has no epochs, so max_epochs={self.max_epochs} has no meaning. Say by "
                "the policy how much of it is replayed, such as ReplayRatio(0.1)."
            )
        if self.is_iterable:
            if self.max_epochs is not None and not (self.max_epochs >= 1 and float(self.max_epochs).is_integer()):
                raise ValueError(
                    f"Stream {self.name!r}: max_epochs of an iterable data set must be a whole number of passes, 1 or "
                    f"more, got {self.max_epochs}. Use None for a stream that is repeated without end."
                )
        elif self.max_epochs is not None and not (math.isfinite(self.max_epochs) and self.max_samples):
            raise ValueError(
                f"Stream {self.name!r}: max_epochs must leave at least one of its {len(self.dataset)} samples, "
                f"got {self.max_epochs}. Use None for a stream that is repeated without end."
            )

    def _check_numbers(self) -> None:
        for field_name in ("weight", "max_epochs", "enters_at", "leaves_at", "loss_weight"):
            value = getattr(self, field_name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, (int, float, np.number))):
                raise TypeError(f"Stream {self.name!r}: {field_name} must be a number, got {value!r}.")
        if self.seed is not None and (isinstance(self.seed, bool) or not isinstance(self.seed, (int, np.integer))):
            raise TypeError(f"Stream {self.name!r}: seed must be a whole number, got {self.seed!r}.")

    def _check_specifics(self) -> None:
        if self.loss_weight is None or not (math.isfinite(self.loss_weight) and self.loss_weight >= 0):
            raise ValueError(
                f"Stream {self.name!r}: loss_weight must be a finite number of 0 or more, got {self.loss_weight}."
            )
        for field_name in ("preprocess", "data_collator", "compute_loss_func"):
            value = getattr(self, field_name)
            if value is not None and not callable(value):
                raise TypeError(f"Stream {self.name!r}: {field_name} must be a function or None, got {value!r}.")
        names = self.label_names
        is_list = isinstance(names, Sequence) and not isinstance(names, str)
        if names is not None and not (is_list and all(isinstance(name, str) for name in names)):
            raise TypeError(f"Stream {self.name!r}: label_names must be a list of column names or None, got {names!r}.")
        if self.head is not None and not (isinstance(self.head, str) and self.head):
            raise TypeError(f"Stream {self.name!r}: head must be the name of one or None, got {self.head!r}.")
        if self.is_memory and self.preprocess is not None:
            raise ValueError(
                f"Stream {self.name!r}: a memory holds samples that have been preprocessed, so it takes no preprocess."
            )

    @property
    def is_iterable(self) -> bool:
        """Whether the data set can only be read from its beginning."""
        return is_iterable(self.dataset)

    @property
    def is_memory(self) -> bool:
        """Whether the data set is a replay buffer, which grows and forgets as the run goes on."""
        return isinstance(self.dataset, GrowingDataset)

    @property
    def num_samples(self) -> int:
        """Number of samples of the data set; 0 for an iterable one, of which it is not known, and for a memory."""
        return 0 if self.is_iterable or self.is_memory else len(self.dataset)

    @property
    def max_samples(self) -> int | None:
        """Number of samples after which the stream is exhausted, or `None` if there is no such number."""
        if self.max_epochs is None or self.is_iterable:
            return None
        return max(0, round(self.max_epochs * self.num_samples))

    def order_key(self, run_seed: int) -> int:
        """Gives the key of the stream's order, the same on every rank and in every run with this seed.

        Args:
            run_seed: The run's seed, for a stream without one of its own.

        Returns:
            A signed 64-bit integer.
        """
        text = f"{run_seed}/{self.name}" if self.seed is None else f"{self.seed}"
        return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little", signed=True)


def is_iterable(dataset: Any) -> bool:
    """Says whether a data set can only be read from its beginning.

    Args:
        dataset: The data set.

    Returns:
        Whether it cannot be indexed.
    """
    has_rows_only = hasattr(dataset, "__iter__") and not hasattr(dataset, "__getitem__")
    return isinstance(dataset, (IterableDataset, datasets.IterableDataset)) or has_rows_only


def _check_dataset(stream: Stream) -> None:
    name, dataset = stream.name, stream.dataset
    if hasattr(dataset, "__next__"):
        raise TypeError(
            f"Stream {name!r}: an iterator can be read only once, neither repeated nor resumed. Give a data set whose "
            "__iter__ begins anew, such as IterableDataset.from_generator(function)."
        )
    if stream.is_iterable or stream.is_memory:
        return
    try:
        length = len(dataset)
        dataset.__getitem__  # noqa: B018
    except (TypeError, AttributeError):
        raise TypeError(
            f"Stream {name!r}: a data set needs __len__ and __getitem__, or __iter__ alone; {type(dataset).__name__} "
            "has neither."
        ) from None
    if length == 0:
        raise ValueError(f"Stream {name!r}: the data set is empty.")


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
