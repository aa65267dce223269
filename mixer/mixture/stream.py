"""Streams: the named data sources of a mixture, and checks of several together."""

import hashlib
import logging
import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, get_args

import numpy as np

from mixer.mixture.bad_samples import OnSampleError, Skipping
from mixer.mixture.cursor import GrowingDataset
from mixer.mixture.split_names import find_held_out
from mixer.policies.contract import UNITS, Mixture, Unit
from mixer.utils.arrays import Int64Array
from mixer.utils.options import check_choice
from mixer.utils.recorded_arguments import names_arguments
from mixer.utils.text import safe_name, safe_names

logger = logging.getLogger(__name__)
# Libraries of datasets, which take seconds to import.
_LIBRARIES = ("torch.utils.data", "datasets")
_AMOUNTS = tuple(f"max_{unit}" for unit in UNITS)
_WHOLE = (int, np.integer)


@names_arguments
@dataclass(frozen=True)
class Stream:
    """A data source of a mixture.

    Args:
        name: Name in logs, in the ledger and in weights by name. A whole number becomes text, and `/`, which separates
            parts of log keys, becomes `--`; weights by name may have either form.
        dataset: Map-style dataset with `__len__` and `__getitem__` (and optionally `__getitems__`), iterable dataset,
            or replay buffer, which holds samples of the other streams. The length of an iterable dataset is unknown
            until it ends.
        weight: Initial weight. Set it for every stream or for none; without, adaptive policies start uniform.
        max_epochs: Passes over the dataset after which the stream leaves the mixture; `None` repeats it without end. An
            integer for an iterable dataset.
        shuffle: Whether to shuffle each epoch anew; no effect on an iterable dataset.
        seed: Shuffling key; `None` derives one from the run's seed and the name.
        enters_at: Progress of the run, in [0, 1], at which the stream joins the mixture; `"decay"` is the moment at
            which the learning rate begins to fall.
        leaves_at: Progress of the run at which it leaves, or `"decay"`.
        is_random: Whether reading a sample draws random numbers. `None` detects it; set `True` for a dataset that
            restores the global generators after drawing, or caches its draws.
        groups: Group of this stream in each grouping of the mixture, such as `{"language": "de", "domain": "code"}`.
        preprocess: Maps a sample to collator input each time it is read, in the workers if there are any. It sees all
            columns. Its random numbers are specific to the sample.
        data_collator: Collates this stream's micro-batches, in place of the trainer's collator.
        label_names: Label columns of this stream, in place of the training arguments' `label_names`.
        compute_loss_func: Loss of this stream, as for the Trainer: `f(outputs, labels, num_items_in_batch)`.
        head: The `task` input of a model with one head per task; `None` passes the stream's name if its forward takes a
            `task`.
        loss_weight: Factor on this stream's loss, independent of how often its samples come. Logs show the unweighted
            loss.
        on_sample_error: Treatment of samples that cannot be loaded, in place of the trainer's `on_sample_error`.
        content: Identity of the samples: a saved run resumes only with the same text. `None` compares the number of
            samples; no effect on an iterable dataset.
        max_samples: Samples over the whole run after which the stream leaves the mixture; `None` for no limit. Samples
            are repeated if the dataset has fewer. If all streams have an amount and none a weight, the amounts are
            spread evenly over the run, which without a budget or `max_steps` lasts until they are reached.
        max_tokens: Tokens over the whole run after which it leaves: in the step that reaches them, as far as the mean
            length of its samples tells.
        max_labels: The same in labels: the tokens that the loss learns.

    A stream with its own collator, labels, loss or head has separate micro-batches. If losses or heads differ, their
    terms are of different kinds (a sentence here, a token there), so streams count by samples instead of terms: the
    loss of a step is the sum of the streams' means times their shares of its samples.

    Raises:
        ValueError: If a value is outside its range or the dataset is empty.
        TypeError: If the dataset can neither be indexed nor iterated repeatedly, or a value has the wrong type.
    """

    name: str
    dataset: Any = field(repr=False)
    weight: float | None = None
    max_epochs: float | None = None
    shuffle: bool = True
    seed: int | None = None
    enters_at: float | Literal["decay"] = 0.0
    leaves_at: float | Literal["decay"] = 1.0
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
    max_samples: int | None = None
    max_tokens: int | None = None
    max_labels: int | None = None

    def __post_init__(self) -> None:
        self._check_name()
        if self.on_sample_error is not None:
            check_choice(f"Stream {self.name!r}: on_sample_error", self.on_sample_error, get_args(OnSampleError))
        self._check_dataset()
        self._check_types()
        self._check_values()
        self._check_amounts()
        self._check_epochs()

    def _error(self, message: str, kind: type[Exception] = ValueError) -> Exception:
        return kind(f"Stream {self.name!r}: {message}")

    def _check_name(self) -> None:
        object.__setattr__(self, "name", safe_name(self.name))
        if not isinstance(self.name, str) or not self.name.strip():
            raise ValueError(f"Stream name must be a non-empty string, got {self.name!r}.")
        if not self.name.isprintable():
            raise ValueError(f"Stream name {self.name!r} must contain printable characters only.")

    def _check_dataset(self) -> None:
        if hasattr(self.dataset, "__next__"):
            raise self._error(
                "an iterator can be read only once, neither repeated nor resumed. Use a dataset whose __iter__ "
                "restarts, such as IterableDataset.from_generator(function).",
                TypeError,
            )
        if self.is_iterable or self.is_memory:
            return
        try:
            length = len(self.dataset)
            self.dataset.__getitem__  # noqa: B018
        except (TypeError, AttributeError):
            kind = type(self.dataset).__name__
            text = f"a dataset needs __len__ and __getitem__, or __iter__ alone; {kind} has neither."
            raise self._error(text, TypeError) from None
        if length == 0:
            raise self._error("the dataset is empty.")

    def _check_types(self) -> None:
        for name in ("weight", "max_epochs", "enters_at", "leaves_at", "loss_weight", "seed", *_AMOUNTS):
            value, is_whole = getattr(self, name), name in ("seed", *_AMOUNTS)
            if value is None or (value == "decay" and name in ("enters_at", "leaves_at")):
                continue
            if isinstance(value, bool) or not isinstance(value, _WHOLE if is_whole else (*_WHOLE, float, np.number)):
                raise self._error(f"{name} must be a {'whole ' * is_whole}number, got {value!r}.", TypeError)
        for name in ("preprocess", "data_collator", "compute_loss_func"):
            value = getattr(self, name)
            if value is not None and not callable(value):
                raise self._error(f"{name} must be a function or None, got {value!r}.", TypeError)
        names = self.label_names
        is_list = isinstance(names, Sequence) and not isinstance(names, str)
        if names is not None and not (is_list and all(isinstance(name, str) for name in names)):
            raise self._error(f"label_names must be a list of column names or None, got {names!r}.", TypeError)
        if self.head is not None and not (isinstance(self.head, str) and self.head):
            raise self._error(f"head must be the name of a head or None, got {self.head!r}.", TypeError)

    def _check_values(self) -> None:
        for name, value in (("loss_weight", self.loss_weight), ("weight", 0 if self.weight is None else self.weight)):
            if value is None or not (math.isfinite(value) and value >= 0):
                raise self._error(f"{name} must be a finite number of 0 or more, got {value}.")
        if self.is_memory and self.preprocess is not None:
            raise self._error("a memory holds preprocessed samples, so preprocess must not be set.")
        at = [share for share in (self.enters_at, self.leaves_at) if not isinstance(share, str)]
        if not (all(0.0 <= share <= 1.0 for share in at) and self.enters_at != self.leaves_at and at == sorted(at)):
            raise self._error(
                f"0 <= enters_at < leaves_at <= 1 (or 'decay') must hold, got {self.enters_at} and {self.leaves_at}."
            )

    def _check_amounts(self) -> None:
        for name in (*_AMOUNTS, "max_epochs"):
            value = getattr(self, name)
            if value is not None and self.is_memory:
                raise self._error(
                    f"{name}={value} is not for a memory: the policy sets the amount of replay, as ReplayRatio(0.1)."
                )
            if value is not None and value < 1 and name in _AMOUNTS:
                raise self._error(f"{name} must be 1 or more, got {value}. Use None for no limit.")

    def _check_epochs(self) -> None:
        epochs = self.max_epochs
        if epochs is None:
            return
        if self.is_iterable:
            needs, is_valid = "of an iterable dataset must be a whole number of passes, 1 or more", epochs >= 1
            is_valid = is_valid and float(epochs).is_integer()
        else:
            needs = f"must leave at least one of its {self.num_samples} samples"
            is_valid = math.isfinite(epochs) and bool(self.end)
        if not is_valid:
            raise self._error(f"max_epochs {needs}, got {epochs}. Use None to repeat it without end.")

    @cached_property
    def is_iterable(self) -> bool:
        """Whether the dataset is iterable only."""
        return is_iterable(self.dataset)

    @cached_property
    def is_memory(self) -> bool:
        """Whether the dataset is a replay buffer, which grows and forgets during the run."""
        return isinstance(self.dataset, GrowingDataset)

    @property
    def num_samples(self) -> int:
        """Number of samples of the dataset; 0 for iterable datasets and memories."""
        return 0 if self.is_iterable or self.is_memory else len(self.dataset)

    @property
    def end(self) -> int | None:
        """Samples after which the stream is exhausted, or `None`; an iterable one may end before."""
        has_passes = self.max_epochs is not None and not self.is_iterable
        by_epochs = max(0, round((self.max_epochs or 0.0) * self.num_samples)) if has_passes else None
        limits = [limit for limit in (by_epochs, self.max_samples) if limit is not None]
        return min(limits, default=None)

    @property
    def amounts(self) -> dict[Unit, int]:
        """Its absolute amounts by what they count."""
        found = {unit: getattr(self, name) for unit, name in zip(UNITS, _AMOUNTS, strict=True)}
        return {unit: amount for unit, amount in found.items() if amount is not None}

    def order_key(self, run_seed: int) -> int:
        """Returns the key of the stream's permutation, identical on every rank and in every run with this seed.

        Args:
            run_seed: Seed of the run, for streams without their own.

        Returns:
            A signed 64-bit integer.
        """
        text = f"{run_seed}/{self.name}" if self.seed is None else f"{self.seed}"
        return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little", signed=True)


def is_iterable(dataset: Any) -> bool:
    """Whether a dataset is iterable only, so that it cannot be indexed."""
    has_rows_only = hasattr(dataset, "__iter__") and not hasattr(dataset, "__getitem__")
    return has_rows_only or any(_is_of(dataset, library, "IterableDataset") for library in _LIBRARIES)


def selected(dataset: Any, indices: Int64Array) -> Any:
    """Selects rows of a map-style dataset: a dataset of the same kind if it can, else a `Subset`.

    Args:
        dataset: The dataset.
        indices: int64 `[num_rows]`.
    """
    if hasattr(dataset, "select"):
        return dataset.select(indices)
    from torch.utils.data import Subset

    return Subset(dataset, indices.tolist())


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
        streams = [replace(stream, name=name) for name, stream in zip(train_dataset, streams, strict=True)]
    elif isinstance(train_dataset, Stream):
        streams = [train_dataset]
    elif isinstance(train_dataset, Sequence) and train_dataset and isinstance(train_dataset[0], Stream):
        streams = list(train_dataset)
    elif isinstance(train_dataset, (list, tuple)) and train_dataset and is_dataset(train_dataset[0]):
        raise TypeError(
            f"{called} is a list of {len(train_dataset)} datasets without names: use a dict, such as "
            '{"math": math, "code": code}, or a list of Stream.'
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
    is_number = isinstance(max_skipped_share, (int, float)) and not isinstance(max_skipped_share, bool)
    if not (is_number and 0.0 <= max_skipped_share <= 1.0):
        raise ValueError(f"max_skipped_share must be a share from 0 to 1, got {max_skipped_share!r}.")
    chosen = [stream.on_sample_error or (None if stream.is_memory else on_sample_error) for stream in streams]
    default = "skip" if "skip" in chosen else on_sample_error
    ids = frozenset(k for k, choice in enumerate(chosen) if (choice or default) == "skip")
    return Skipping(ids, float(max_skipped_share))


def is_dataset(value: Any) -> bool:
    """Whether a value is a dataset or a `Stream`, as opposed to a single sample."""
    of_library = any(_is_of(value, library, "Dataset", "IterableDataset") for library in _LIBRARIES)
    return of_library or isinstance(value, Stream)


def _is_of(value: Any, library: str, *names: str) -> bool:
    """Whether a value is of a library's classes, without an import of the library: if nobody did, it is not."""
    module = sys.modules.get(library)
    return module is not None and isinstance(value, tuple(getattr(module, name) for name in names))


def _check_streams(streams: Sequence[Stream], called: str) -> None:
    if not streams:
        raise ValueError(f"{called} has no streams; at least one dataset is required.")
    for position, stream in enumerate(streams):
        if not isinstance(stream, Stream):
            raise TypeError(f"{called}[{position}] must be a Stream like the first entry, got {type(stream).__name__}.")
    names = [stream.name for stream in streams]
    if "other" in names:
        raise ValueError("The stream name 'other' is reserved for the log entry loss/other; rename the stream.")
    if held_out := find_held_out(names):
        raise ValueError(
            f"The streams {names} look like the splits of one dataset; mixing them would train on held-out data: "
            f"{held_out}. Pass the training splits only, or rename the streams if they are sources of their own."
        )
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"Stream names must be unique, but {twice} occur more than once.")
    without = [stream.name for stream in streams if stream.weight is None]
    if without and len(without) < len(streams):
        raise ValueError(f"Set a weight for every stream or for none; these have none: {without}.")
    if all(stream.is_memory for stream in streams):
        raise ValueError(
            f"{called}: the streams {names} are replay buffers, which hold samples of other streams; add those."
        )
    if not without and not sum(stream.weight or 0.0 for stream in streams):
        raise ValueError("The weights of all streams are 0; at least one must be positive.")
