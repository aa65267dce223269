"""Collates samples into a micro-batch."""

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
    """A rank's samples of a step, in whichever form they were loaded.

    Args:
        columns: By columns.
        samples: Or one by one.
        rows: Or each by what it was loaded with and its number there.
    """

    def __init__(self, columns: Columns | None = None, samples: Sequence[Any] = (), rows: Sequence[Row] | None = None):
        self._columns, self._samples, self._rows = columns, samples, rows

    @property
    def is_stacked(self) -> bool:
        """Whether all samples have the same shapes, so that none is longer than another."""
        return self._columns is not None

    def broken(self) -> dict[int, BrokenSample]:
        """Finds the samples that could not be loaded.

        Returns:
            What stands for them, by their places.
        """
        if self._columns is not None:
            return {}
        if self._rows is None:
            samples: Iterable[Any] = self._samples
        else:  # rows of columns are whole
            samples = (None if rows.has_columns else rows[number] for rows, number in self._rows)
        return {place: sample for place, sample in enumerate(samples) if isinstance(sample, BrokenSample)}

    def columns(self, selection: Selection) -> Columns | None:
        """Picks samples by columns.

        Args:
            selection: Which ones.

        Returns:
            For each column a tensor `[num_samples, ...]`, or `None` where the samples are not equal-shaped tensors.
        """
        if self._columns is not None:
            return {name: values[selection] for name, values in self._columns.items()}
        return None if self._rows is None else stack_rows(_pick(self._rows, selection))

    def samples(self, selection: Selection) -> list[Any]:
        """Picks samples one by one.

        Args:
            selection: Which ones.

        Returns:
            The samples.
        """
        if self._rows is not None:
            return [samples[number] for samples, number in _pick(self._rows, selection)]
        if self._columns is not None:
            columns = self.columns(selection) or {}
            return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
        return _pick(self._samples, selection)


@dataclass(frozen=True)
class StreamSpecifics:
    """What the micro-batches of one stream have of their own.

    Args:
        collator: Makes them; `None` for the collator of all.
        task: What the model is given as `task`, beside what the collator gives; `None` for nothing.
    """

    collator: Collator | None = None
    task: str | None = None


class Collation:
    """Makes micro-batches; a collator that draws random numbers draws the same in every repetition of a run.

    Args:
        collator: Makes a micro-batch of a list of samples.
        stack_columns: Makes one of columns instead, where samples are loaded so; `None` always takes the collator.
        seed: The run's seed.
        rank: This rank.
        pin_memory: Whether micro-batches are put into memory from where a GPU can fetch them by itself.
        specifics: What the micro-batches of single streams have of their own, by the stream's number.
        names: The streams' names, for errors.
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
        self._common, self._stack_columns = _Collating(collator), stack_columns
        self._seed, self._rank, self._pin_memory, self._names = seed, rank, pin_memory, names
        collators = {stream_id: form.collator for stream_id, form in specifics.items()}
        self._own = {stream_id: _Collating(own) for stream_id, own in collators.items() if own is not None}
        self._tasks = {stream_id: form.task for stream_id, form in specifics.items() if form.task is not None}
        # Streams (-1: micro-batches of several) whose samples may differ in columns: nobody could look before.
        self.compared: frozenset[int] = frozenset()
        self.taken: frozenset[str] | None = None  # the columns that are not removed; `None` for all
        self.removed: frozenset[str] = frozenset()  # those of data sets that were removed before samples were loaded

    def collate(self, loaded: Loaded, selection: Selection, step: int, number: int, stream_id: int = -1) -> Any:
        """Makes a micro-batch.

        Args:
            loaded: This rank's samples of a step.
            selection: Which of them.
            step: Number of the step, from 1.
            number: Number of the micro-batch in it.
            stream_id: The stream that all of them are of; -1 where they are of any.

        Returns:
            What the collator gives, and the stream's task.
        """
        try:
            inputs = self._pinned(self._make(loaded, selection, step, number, stream_id))
            task = self._tasks.get(stream_id)
            return inputs if task is None else {**batch_mapping(inputs), TASK: task}
        except Exception as error:
            which = f" All its samples are of the stream {self._names[stream_id]!r}." if stream_id >= 0 else ""
            error.add_note(f"While micro-batch {number} of step {step} was collated.{which}")
            if isinstance(error, KeyError) and (removed := self._removed(loaded, selection)):
                error.add_note(
                    f"remove_unused_columns=True removed the columns {removed}, which the model's forward does not "
                    "take, before the data_collator saw the samples: set it to False if the collator needs one of them."
                )
            raise

    def _removed(self, loaded: Loaded, selection: Selection) -> list[str]:
        """Names the columns that the collator does not see; memories and code may make samples of any columns."""
        if self.taken is None:
            return []
        samples = [sample for sample in loaded.samples(selection) if isinstance(sample, Mapping)]
        return sorted((self.removed | {str(name) for sample in samples for name in sample}) - self.taken)

    def _make(self, loaded: Loaded, selection: Selection, step: int, number: int, stream_id: int) -> Any:
        own = self._own.get(stream_id)
        columns = None if self._stack_columns is None or own is not None else loaded.columns(selection)
        if columns is not None and self._stack_columns is not None:
            return self._stack_columns(columns)
        collating, samples = own or self._common, loaded.samples(selection)
        if stream_id in self.compared:
            _check_same_columns(samples, self.taken)
        if not collating.draws:
            return collating.collator(samples)
        with seeded(self._seed, step - 1, self._rank, number):
            return collating.collator(samples)

    def _pinned(self, inputs: Any) -> Any:
        if not self._pin_memory or not isinstance(inputs, Mapping):
            return inputs
        return {name: value.pin_memory() if _is_pinnable(value) else value for name, value in inputs.items()}


def batch_mapping(inputs: Any) -> Mapping[str, Any]:
    """Checks that a collator gave what a model can be called with.

    Args:
        inputs: A collated micro-batch.

    Returns:
        The same object.

    Raises:
        TypeError: If it is no mapping.
    """
    if not isinstance(inputs, Mapping):
        raise TypeError(f"The data_collator must return a mapping of model inputs, got {type(inputs).__name__}.")
    return inputs


def _check_same_columns(samples: Sequence[Any], taken: frozenset[str] | None) -> None:
    """Refuses samples of which a collator that goes by the first one's columns would lose some."""
    first = samples[0]
    if type(first) is dict and all(type(sample) is dict and sample.keys() == first.keys() for sample in samples):
        return
    columns = {frozenset(sample) for sample in samples if isinstance(sample, Mapping)}
    columns = columns if taken is None else {own & taken for own in columns}
    if len(columns) > 1:
        differing = sorted(set.union(*map(set, columns)) - set.intersection(*map(set, columns)), key=str)
        raise ValueError(f"Samples differ in their columns: only some have {differing}.")


class _Collating:
    """A collator, and whether it draws random numbers."""

    def __init__(self, collator: Collator):
        self.collator, self.draws = collator, not collates_without_randomness(collator)


def _pick(values: Sequence[Any], selection: Selection) -> list[Any]:
    if isinstance(selection, slice):
        return list(values[selection])
    return [values[place] for place in selection.tolist()]


def _is_pinnable(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.device.type == "cpu" and value.layout is torch.strided


def can_share_batch(collator: Collator, samples: Sequence[Any], alone: Sequence[Mapping[str, Any]]) -> bool:
    """Tries whether a collator makes of several streams' samples what it makes of each stream's.

    A collator that pads does so; one that stacks cannot, if shapes differ; and one that goes by the first sample's
    columns, or by its shape or its labels' type, would silently lose or turn the others'.

    Args:
        collator: The collator.
        samples: One sample of each stream.
        alone: What the collator makes of each alone.

    Returns:
        Whether the streams have the same columns of the same kinds, alone and together.
    """
    kinds = [_kinds(inputs) for inputs in alone]
    if any(kind != kinds[0] for kind in kinds):
        return False
    try:
        together = collator([copy.copy(sample) for sample in samples])
    except Exception:  # whatever it is that it cannot put together
        return False
    if not isinstance(together, Mapping) or _kinds(together) != kinds[0]:
        return False
    return all(_has_room(value, [inputs[name] for inputs in alone]) for name, value in together.items())


def _has_room(together: Any, alone: Sequence[Any]) -> bool:
    """Whether nothing of a column was cut off: no dimension is smaller than that of one of the streams."""
    if not isinstance(together, Tensor):
        return True
    return all(size >= own for one in alone for size, own in zip(together.shape[1:], one.shape[1:], strict=True))


def _kinds(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Says what each column is: of a tensor, its type and number of dimensions."""
    return {
        name: (value.dtype, value.dim()) if isinstance(value, Tensor) else type(value) for name, value in inputs.items()
    }
