"""Streams: the named data sources of a mixture, and what one that grows during the run has to offer."""

import hashlib
import logging
import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, Protocol, get_args, runtime_checkable

import numpy as np

from mixer.mixture.apportion import as_fraction
from mixer.mixture.bad_samples import OnSampleError
from mixer.policies.contract import UNITS, Unit
from mixer.utils.arrays import Int64Array
from mixer.utils.data_set import DataSet
from mixer.utils.errors import ErrorFacts, InvalidTypeError, InvalidValueError, wrong_value
from mixer.utils.ranges import check_choice
from mixer.utils.recorded_arguments import names_arguments
from mixer.utils.text import safe_name

logger = logging.getLogger(__name__)
# Libraries of datasets, which take seconds to import.
LIBRARIES = ("torch.utils.data", "datasets")
# Rows of the batches of a pass, given the batch size, its number and a seed.
Batches = Callable[[int, int, int], Iterable[Sequence[int]]]
_AMOUNTS = tuple(f"max_{unit}" for unit in UNITS)
_WHOLE = (int, np.integer)


class Cursor(Protocol):
    """Draws the next samples of a stream, as indices into its dataset.

    Drawing has two parts, so that every rank knows all ranks' draws but looks up only its own share: `advance` reserves
    positions, `references` maps them to indices.
    """

    @property
    def available(self) -> int | None:
        """Samples that can be drawn now; `None` means unlimited."""

    def advance(self, count: int) -> int:
        """Reserves the next `count` positions, at most `available`, and returns the first."""

    def references(self, positions: range | Int64Array) -> Int64Array:
        """Maps positions to dataset indices.

        Args:
            positions: Positions in ascending order, reserved or soon to be.

        Returns:
            int64 `[len(positions)]`: indices into the stream's dataset.
        """

    def lookahead_copy(self) -> "Cursor":
        """Returns a copy for lookahead: drawing from it does not move this one."""

    def state_dict(self) -> dict[str, Any]:
        """Returns the state as plain data."""

    def load_state_dict(self, state: Mapping[str, Any], allow_inexact: bool = False) -> None:
        """Restores a saved state; raises a `ValueError` on a mismatch, or resumes as closely as possible."""


@runtime_checkable
class GrowingDataset(Protocol):
    """Dataset that grows and forgets during training, such as a replay buffer.

    It decides itself which samples to draw; its cursor's `references` are numbers by which its reader looks them up.
    """

    def new_cursor(self, key: int) -> Cursor:
        """Returns its cursor; `key` is the stream's random key."""

    def reader(self, datasets: Mapping[str, Any]) -> Any:
        """Returns an object to read its samples from, by `__getitem__`.

        Args:
            datasets: Datasets of the run's other streams, by name, as the loader reads them.
        """

    def follow(self, name: str, streams: Sequence[Any], planner: Callable[[], Any]) -> Callable[[Any], None]:
        """Returns a function that fills it in your own training loop.

        Args:
            name: Name of its stream.
            streams: Streams, in order.
            planner: Returns the planner.

        Returns:
            Function to call with the plan of each batch after training on it.

        Raises:
            ValueError: If only a trainer can fill it.
        """

    def as_method(self, name: str, streams: Sequence[Any]) -> Any:
        """Returns the `mixer.trainer.method.Method` that fills it, in a run of some streams; `name` is its stream's."""


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
        distinct_by: Columns in which the rows of a step may not agree, in any order, as negatives of each other must
            not; `"row"` for rows that are equal in all columns. Needs `one_stream_per="step"`.
        batches: Returns the batches of a pass, `f(batch_size, number, seed) -> lists of rows`, each of which is a step,
            in place of shuffled rows; a larger one is cut. Needs `one_stream_per="step"`.

    A stream with its own collator, labels, loss or head has separate micro-batches. If losses or heads differ, their
    terms are of different kinds (a sentence here, a token there), so streams count by samples instead of terms: the
    loss of a step is the sum of the streams' means times their shares of its samples.

    Raises:
        ValueError: If a value is outside its range or the dataset is empty.
        TypeError: If the dataset can neither be indexed nor iterated repeatedly, or a value has the wrong type.
    """

    name: str
    dataset: DataSet = field(repr=False)
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
    distinct_by: Literal["row"] | Sequence[str] | None = None
    batches: Batches | None = None

    def __post_init__(self) -> None:
        self._check_name()
        if self.on_sample_error is not None:
            check_choice(f"Stream {self.name!r}: on_sample_error", self.on_sample_error, get_args(OnSampleError))
        self._check_dataset()
        self._check_types()
        self._check_values()
        self._check_amounts()
        self._check_epochs()

    def _error(self, option: str, text: str, kind: type[ErrorFacts] = InvalidValueError) -> ErrorFacts:
        return kind(f"Stream {self.name!r}: {option} {text}", option=option, stream=self.name)

    def _check_name(self) -> None:
        object.__setattr__(self, "name", safe_name(self.name))
        if not isinstance(self.name, str) or not self.name.strip():
            raise wrong_value("name", f"Stream name must be a non-empty string, got {self.name!r}.")
        if not self.name.isprintable():
            raise wrong_value("name", f"Stream name {self.name!r} must contain printable characters only.")

    def _check_dataset(self) -> None:
        if hasattr(self.dataset, "__next__"):
            text = "is an iterator, which is read only once. Use IterableDataset.from_generator, say."
            raise self._error("dataset", text, InvalidTypeError)
        if self.is_iterable or self.is_memory:
            return
        try:
            length = len(self.dataset)
            self.dataset.__getitem__  # noqa: B018
        except (TypeError, AttributeError):
            text = f"needs __len__ and __getitem__, or __iter__ alone; {type(self.dataset).__name__} has neither."
            raise self._error("dataset", text, InvalidTypeError) from None
        if length == 0:
            raise self._error("dataset", "is empty.")

    def _check_types(self) -> None:
        for name in ("weight", "max_epochs", "enters_at", "leaves_at", "loss_weight", "seed", *_AMOUNTS):
            value, is_whole = getattr(self, name), name in ("seed", *_AMOUNTS)
            if value is None or (value == "decay" and name in ("enters_at", "leaves_at")):
                continue
            if isinstance(value, bool) or not isinstance(value, _WHOLE if is_whole else (*_WHOLE, float, np.number)):
                raise self._error(name, f"must be a {'whole ' * is_whole}number, got {value!r}.", InvalidTypeError)
        for name in ("preprocess", "data_collator", "compute_loss_func", "batches"):
            value = getattr(self, name)
            if value is not None and not callable(value):
                raise self._error(name, f"must be a function or None, got {value!r}.", InvalidTypeError)
        for option, names in (("label_names", self.label_names), ("distinct_by", self.distinct_by)):
            is_list = isinstance(names, Sequence) and not isinstance(names, str)
            is_named = names is None or (is_list and all(isinstance(name, str) for name in names))
            if not (is_named or (option, names) == ("distinct_by", "row")):
                raise self._error(option, f"must be a list of columns or None, got {names!r}.", InvalidTypeError)
        if self.head is not None and not (isinstance(self.head, str) and self.head):
            raise self._error("head", f"must be the name of a head or None, got {self.head!r}.", InvalidTypeError)

    def _check_values(self) -> None:
        for name, value in (("loss_weight", self.loss_weight), ("weight", 0 if self.weight is None else self.weight)):
            if value is None or not (math.isfinite(value) and value >= 0):
                raise self._error(name, f"must be a finite number of 0 or more, got {value}.")
        if self.is_memory and self.preprocess is not None:
            raise self._error("preprocess", "must not be set: a memory holds preprocessed samples.")
        if (self.distinct_by, self.batches) != (None, None) and (self.is_iterable or self.is_memory):
            raise self._error("distinct_by" if self.batches is None else "batches", "needs a data set with an index.")
        at = [share for share in (self.enters_at, self.leaves_at) if not isinstance(share, str)]
        if not (all(0.0 <= share <= 1.0 for share in at) and self.enters_at != self.leaves_at and at == sorted(at)):
            raise self._error(
                "enters_at", f"must be 0 or more and below leaves_at, got {self.enters_at} and {self.leaves_at}."
            )

    def _check_amounts(self) -> None:
        for name in (*_AMOUNTS, "max_epochs"):
            value = getattr(self, name)
            if value is not None and self.is_memory:
                raise self._error(
                    name, "must not be set: the policy sets how much of a memory is replayed, as ReplayRatio(0.1)."
                )
            if value is not None and value < 1 and name in _AMOUNTS:
                raise self._error(name, f"must be 1 or more, got {value}. Use None for no limit.")

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
            raise self._error("max_epochs", f"{needs}, got {epochs}. Use None to repeat it without end.")

    @cached_property
    def is_iterable(self) -> bool:
        """Whether the dataset is iterable only."""
        return is_iterable(self.dataset)

    @cached_property
    def is_memory(self) -> bool:
        """Whether the dataset is a replay buffer, which grows and forgets during the run."""
        return issubclass(type(self.dataset), GrowingDataset)  # known once a class, unlike that of an instance

    @property
    def num_samples(self) -> int:
        """Number of samples of the dataset; 0 for iterable datasets and memories."""
        return 0 if self.is_iterable or self.is_memory else len(self.dataset)

    @property
    def end(self) -> int | None:
        """Samples after which the stream is exhausted, or `None`; an iterable one may end before."""
        has_passes = self.max_epochs is not None and not self.is_iterable
        by_epochs = max(0, round(as_fraction(self.max_epochs or 0.0) * self.num_samples)) if has_passes else None
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


def is_iterable(dataset: DataSet) -> bool:
    """Whether a dataset is iterable only, so that it cannot be indexed."""
    has_rows_only = hasattr(dataset, "__iter__") and not hasattr(dataset, "__getitem__")
    return has_rows_only or any(is_of(dataset, library, "IterableDataset") for library in LIBRARIES)


def selected(dataset: DataSet, indices: Int64Array) -> Any:
    """Selects rows of a map-style dataset: a dataset of the same kind if it can, else a `Subset`.

    Args:
        dataset: The dataset.
        indices: int64 `[num_rows]`.
    """
    if hasattr(dataset, "select"):
        return dataset.select(indices)
    from torch.utils.data import Subset

    return Subset(dataset, indices.tolist())


def is_of(value: Any, library: str, *names: str) -> bool:
    """Whether a value is of a library's classes, without an import of the library: if nobody did, it is not."""
    module = sys.modules.get(library)
    return module is not None and isinstance(value, tuple(getattr(module, name) for name in names))
