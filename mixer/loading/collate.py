"""Collates samples into micro-batches."""

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from mixer.loading.reader import collates_without_randomness
from mixer.loading.transport import Columns, Row, stack_rows
from mixer.mixture.bad_samples import BrokenSample
from mixer.models.inputs import TASK
from mixer.utils.random_state import seeded

Collator = Callable[[list[Any]], Any]
Selection = slice | NDArray[Any]


class Loaded:
    """A rank's samples of a step, in the form in which they were loaded: exactly one of the three.

    Args:
        columns: Samples as columns.
        samples: Individual samples.
        rows: Samples as references: the `Samples` they were loaded with and their number in it.
    """

    def __init__(self, columns: Columns | None = None, samples: Sequence[Any] = (), rows: Sequence[Row] | None = None):
        self._columns, self._samples, self._rows = columns, samples, rows

    @property
    def is_stacked(self) -> bool:
        """Whether all samples have the same shapes, and hence the same length."""
        return self._columns is not None

    def broken(self) -> dict[int, BrokenSample]:
        """Returns the samples that could not be loaded, by their place."""
        if self._columns is not None:
            return {}
        if self._rows is None:
            samples: Iterable[Any] = self._samples
        else:  # rows of columns are never broken
            samples = (None if rows.has_columns else rows[number] for rows, number in self._rows)
        return {place: sample for place, sample in enumerate(samples) if isinstance(sample, BrokenSample)}

    def columns(self, selection: Selection) -> Columns | None:
        """Selects samples as columns `[num_samples, ...]`; `None` if the samples are not tensors of equal shapes."""
        if self._columns is not None:
            return {name: values[selection] for name, values in self._columns.items()}
        return None if self._rows is None else stack_rows(_pick(self._rows, selection))

    def samples(self, selection: Selection) -> list[Any]:
        """Selects individual samples."""
        if self._rows is not None:
            return [samples[number] for samples, number in _pick(self._rows, selection)]
        if self._columns is not None:
            columns = self.columns(selection) or {}
            return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
        return _pick(self._samples, selection)


@dataclass(frozen=True)
class StreamSpecifics:
    """Settings specific to one stream's micro-batches.

    Args:
        collator: Collator; `None` for the common one.
        task: The model's `task` input; `None` to omit it.
    """

    collator: Collator | None = None
    task: str | None = None


class Collation:
    """Collates micro-batches reproducibly: a collator that draws random numbers draws the same ones in every run.

    Args:
        collator: Collates a list of samples.
        stack_columns: Collates columns instead, where samples are loaded by column; `None` always uses the collator.
        seed: Seed of the run.
        rank: This rank.
        pin_memory: Whether to copy micro-batches into pinned memory.
        specifics: Stream-specific settings, by stream id.
        names: Stream names, for errors.
    """

    def __init__(
        self,
        collator: Collator,
        stack_columns: Callable[[Columns], Any] | None,
        seed: int,
        rank: int,
        pin_memory: bool,
        specifics: Mapping[int, StreamSpecifics] = MappingProxyType({}),
        names: Sequence[str] = (),
    ):
        self._collator, self._stack_columns = collator, stack_columns
        self._seed, self._rank, self._pin_memory, self._names = seed, rank, pin_memory, names
        self._own = {k: own.collator for k, own in specifics.items() if own.collator is not None}
        self._deterministic = {id(own) for own in (collator, *self._own.values()) if collates_without_randomness(own)}
        self._tasks = {k: own.task for k, own in specifics.items() if own.task is not None}
        self.compared: frozenset[int] = frozenset()  # streams whose samples may differ in columns; -1: mixed
        self.taken: frozenset[str] | None = None  # columns that are not removed; `None` for all
        self.removed: frozenset[str] = frozenset()  # dataset columns removed before loading

    def collate(self, loaded: Loaded, selection: Selection, step: int, number: int, stream_id: int = -1) -> Any:
        """Collates a micro-batch.

        Args:
            loaded: This rank's samples of a step.
            selection: Samples of the micro-batch.
            step: Number of the step, from 1.
            number: Number of the micro-batch in the step.
            stream_id: Stream of all its samples; -1 if mixed.

        Returns:
            The collator's output, plus the stream's task.
        """
        try:
            inputs = self._pinned(self._make(loaded, selection, step, number, stream_id))
            task = self._tasks.get(stream_id)
            return inputs if task is None else {**batch_mapping(inputs), TASK: task}
        except Exception as error:
            which = f" All its samples belong to stream {self._names[stream_id]!r}." if stream_id >= 0 else ""
            error.add_note(f"While collating micro-batch {number} of step {step}.{which}")
            if isinstance(error, KeyError) and (removed := self._removed(loaded, selection)):
                error.add_note(
                    f"remove_unused_columns=True removed the columns {removed}, which the model's forward does not "
                    "accept, before the data_collator: set it to False if the collator needs one of them."
                )
            raise

    def _removed(self, loaded: Loaded, selection: Selection) -> list[str]:
        """Names the removed columns; memories and preprocessing functions can yield samples with any columns."""
        if self.taken is None:
            return []
        samples = [sample for sample in loaded.samples(selection) if isinstance(sample, Mapping)]
        return sorted((self.removed | {str(name) for sample in samples for name in sample}) - self.taken)

    def _make(self, loaded: Loaded, selection: Selection, step: int, number: int, stream_id: int) -> Any:
        own = self._own.get(stream_id)
        columns = None if self._stack_columns is None or own is not None else loaded.columns(selection)
        if columns is not None and self._stack_columns is not None:
            return self._stack_columns(columns)
        collator, samples = own or self._collator, loaded.samples(selection)
        if stream_id in self.compared:
            _check_same_columns(samples, self.taken)
        if id(collator) in self._deterministic:
            return collator(samples)
        with seeded(self._seed, step - 1, self._rank, number):
            return collator(samples)

    def _pinned(self, inputs: Any) -> Any:
        if not self._pin_memory or not isinstance(inputs, Mapping):
            return inputs
        return {name: value.pin_memory() if _is_pinnable(value) else value for name, value in inputs.items()}


def batch_mapping(inputs: Any) -> Mapping[str, Any]:
    """Returns the collated micro-batch if it is a mapping of model inputs, else raises a `TypeError`."""
    if not isinstance(inputs, Mapping):
        raise TypeError(f"The data_collator must return a mapping of model inputs, got {type(inputs).__name__}.")
    return inputs


def _check_same_columns(samples: Sequence[Any], taken: frozenset[str] | None) -> None:
    """Refuses samples with different columns: many collators keep the first sample's columns only."""
    first = samples[0]
    if type(first) is dict and all(type(sample) is dict and sample.keys() == first.keys() for sample in samples):
        return
    columns = {frozenset(sample) for sample in samples if isinstance(sample, Mapping)}
    columns = columns if taken is None else {own & taken for own in columns}
    if len(columns) > 1:
        differing = sorted(set.union(*map(set, columns)) - set.intersection(*map(set, columns)), key=str)
        raise ValueError(f"Samples have different columns: only some have {differing}.")


def _pick(values: Sequence[Any], selection: Selection) -> list[Any]:
    if isinstance(selection, slice):
        return list(values[selection])
    return [values[place] for place in selection.tolist()]


def _is_pinnable(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.device.type == "cpu" and value.layout is torch.strided


def can_share_batch(collator: Collator, samples: Sequence[Any], alone: Sequence[Mapping[str, Any]]) -> bool:
    """Checks whether a collator can mix samples of several streams in one batch without loss.

    A collator that pads can. One that stacks fails if shapes differ. One that follows the first sample's columns, shape
    or label type would silently drop or convert data of the others.

    Args:
        collator: Collator.
        samples: One sample of each stream.
        alone: The collator's output for each sample alone.

    Returns:
        Whether the streams have the same columns of the same kinds, alone and together.
    """
    kinds = [_kinds(inputs) for inputs in alone]
    if any(kind != kinds[0] for kind in kinds):
        return False
    try:
        together = collator([copy.copy(sample) for sample in samples])
    except Exception:  # the collator cannot mix these samples
        return False
    if not isinstance(together, Mapping) or _kinds(together) != kinds[0]:
        return False
    return all(_has_room(value, [inputs[name] for inputs in alone]) for name, value in together.items())


def _has_room(together: Any, alone: Sequence[Any]) -> bool:
    """Whether no stream's values were truncated: no dimension is smaller than for a stream alone."""
    if not isinstance(together, Tensor):
        return True
    return all(size >= own for one in alone for size, own in zip(together.shape[1:], one.shape[1:], strict=True))


def _kinds(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the kind of each column: for tensors, dtype and number of dimensions."""
    return {
        name: (value.dtype, value.dim()) if isinstance(value, Tensor) else type(value) for name, value in inputs.items()
    }
