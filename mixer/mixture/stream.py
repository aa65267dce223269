"""A stream: one data source of the mixture, under a name."""

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import datasets
import numpy as np
from torch.utils.data import IterableDataset

from mixer.mixture.bad_samples import OnSampleError, check_choice
from mixer.mixture.cursor import GrowingDataset


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
