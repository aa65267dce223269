"""The loaded samples of a step, and how they are collated into micro-batches."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import default_collate
from transformers import (
    DataCollatorForLanguageModeling,
    DataCollatorForSeq2Seq,
    DataCollatorForTokenClassification,
    DataCollatorWithPadding,
    DefaultDataCollator,
    default_data_collator,
)
from transformers.trainer_utils import RemoveColumnsCollator

from mixer.mixture.bad_samples import BrokenSample
from mixer.models.inputs import TASK
from mixer.models.labels import LABEL_COLUMNS
from mixer.utils.errors import wrong_type, wrong_value
from mixer.utils.random_state import seeded

Collator = Callable[[list[Any]], Any]
Selection = slice | NDArray[Any]
Columns = Mapping[str, Tensor]
Row = tuple["Samples", int]
_FUNCTIONS = (default_data_collator, default_collate)
_COLLATORS = (DataCollatorWithPadding, DataCollatorForSeq2Seq, DataCollatorForTokenClassification, DefaultDataCollator)


class Samples:
    """Samples that were loaded together.

    Args:
        columns: For dicts with equal keys, one column per key: a tensor of all samples, or a list.
        rows: Other samples.
    """

    def __init__(self, columns: Mapping[Any, Tensor | list[Any]] | None, rows: Sequence[Any] = ()):
        self._columns, self._rows = columns, rows

    def __getitem__(self, number: int) -> Any:
        if self._columns is None:
            return self._rows[number]
        return {name: values[number] for name, values in self._columns.items()}

    def __len__(self) -> int:
        return len(self._rows if self._columns is None else next(iter(self._columns.values()), ()))

    def picked(self, selection: Selection) -> list[Any]:
        """Selects individual samples."""
        if self._columns is None and isinstance(selection, slice):
            return list(self._rows[selection])
        return [self[number] for number in _numbers(len(self), selection)]

    def picked_columns(self, selection: Selection) -> Columns | None:
        """Selects samples as columns `[num_samples, ...]`, or `None` if any column is not a tensor."""
        columns = self.tensors
        return None if columns is None else {name: values[selection] for name, values in columns.items()}

    def references(self, count: int) -> list[Row]:
        """Returns references to the first `count` samples."""
        return [(self, number) for number in range(count)]

    @property
    def has_columns(self) -> bool:
        """Whether all samples are dicts with equal keys."""
        return self._columns is not None

    @property
    def tensors(self) -> Columns | None:
        """Columns as tensors `[num_samples, ...]`, or `None` if any is not a tensor."""
        columns = self._columns
        if not columns or not all(isinstance(values, Tensor) for values in columns.values()):
            return None
        return columns  # type: ignore[return-value]


def stack_rows(rows: Sequence[Row]) -> Columns | None:
    """Stacks samples by column.

    Args:
        rows: References to samples.

    Returns:
        For each column a tensor `[num_samples, ...]`; `None` if the samples are not tensors of equal shapes by column.
    """
    runs: list[tuple[Samples, int, int]] = []
    for samples, number in rows:
        if runs and runs[-1][0] is samples and runs[-1][2] == number:
            runs[-1] = (samples, runs[-1][1], number + 1)
        else:
            runs.append((samples, number, number + 1))
    if len(runs) > 1 and all(samples is runs[0][0] for samples, *_ in runs):  # one index in place of many slices
        columns, numbers = runs[0][0].tensors, [number for _, number in rows]
        return None if columns is None else {name: values[numbers] for name, values in columns.items()}
    parts: list[Columns] = []
    for samples, start, stop in runs:
        columns = samples.tensors
        if columns is None or (parts and not _fit(parts[0], columns)):
            return None
        parts.append({name: values[start:stop] for name, values in columns.items()})
    if len(parts) == 1:
        return parts[0]
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


def _fit(first: Columns, other: Columns) -> bool:
    return first.keys() == other.keys() and all(
        values.shape[1:] == other[name].shape[1:] and values.dtype == other[name].dtype
        for name, values in first.items()
    )


class Loaded:
    """A rank's samples of a step.

    Args:
        rows: The samples if they were loaded together, else references to them.
    """

    def __init__(self, rows: Samples | Sequence[Row]):
        self._rows = rows

    def broken(self) -> dict[int, BrokenSample]:
        """Returns the samples that could not be loaded, by their place."""
        # Rows of columns are never broken.
        references = self._rows.references(len(self._rows)) if isinstance(self._rows, Samples) else self._rows
        rows = ((place, row) for place, row in enumerate(references) if not row[0].has_columns)
        found = ((place, samples[number]) for place, (samples, number) in rows)
        return {place: sample for place, sample in found if isinstance(sample, BrokenSample)}

    def columns(self, selection: Selection) -> Columns | None:
        """Selects samples as columns `[num_samples, ...]`; `None` if the samples are not tensors of equal shapes."""
        if isinstance(self._rows, Samples):
            return self._rows.picked_columns(selection)
        return stack_rows(_pick(self._rows, selection))

    def samples(self, selection: Selection) -> list[Any]:
        """Selects individual samples."""
        if isinstance(self._rows, Samples):
            return self._rows.picked(selection)
        return [samples[number] for samples, number in _pick(self._rows, selection)]


@dataclass(frozen=True)
class StreamSpecifics:
    """Settings specific to one stream's micro-batches.

    Args:
        collator: Collator; `None` for the common one.
        task: The model's `task` input; `None` to omit it.
    """

    collator: Collator | None = None
    task: str | None = None


_COMMON = StreamSpecifics()


@dataclass(frozen=True)
class Collation:
    """Collates micro-batches reproducibly: a collator that draws random numbers draws the same ones in every run.

    Args:
        collator: Collates a list of samples.
        names: Stream names, for errors.
        stack_columns: Collates columns instead, where samples are loaded by column; `None` always uses the collator.
        seed: Seed of the run.
        rank: This rank.
        pin_memory: Whether to copy micro-batches into pinned memory.
        specifics: Stream-specific settings, by stream id.
        compared: Streams whose samples may differ in columns, for collators that would silently drop some; -1 for mixed
            micro-batches.
        taken: Columns that are not removed; `None` for all.
        removed: Dataset columns removed before loading.
    """

    collator: Collator
    names: Sequence[str]
    stack_columns: Callable[[Columns], Any] | None = None
    seed: int = 0
    rank: int = 0
    pin_memory: bool = False
    specifics: Mapping[int, StreamSpecifics] = field(default_factory=dict)
    compared: frozenset[int] = frozenset()
    taken: frozenset[str] | None = None
    removed: frozenset[str] = frozenset()

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
            task = self.specifics.get(stream_id, _COMMON).task
            return inputs if task is None else {**batch_mapping(inputs), TASK: task}
        except Exception as error:
            which = f" All its samples belong to stream {self.names[stream_id]!r}." if stream_id >= 0 else ""
            error.add_note(f"While collating micro-batch {number} of step {step}.{which}")
            for note in _unfit_values(loaded.samples(selection)):
                error.add_note(note)
            if isinstance(error, KeyError) and (removed := self._removed_columns(loaded, selection)):
                error.add_note(
                    f"remove_unused_columns=True removed the columns {removed}, which the model's forward does not "
                    "accept, before the data_collator: set it to False if the collator needs one of them."
                )
            raise

    def _removed_columns(self, loaded: Loaded, selection: Selection) -> list[str]:
        """Names the removed columns; memories and preprocessing functions can yield samples with any columns."""
        if self.taken is None:
            return []
        samples = [sample for sample in loaded.samples(selection) if isinstance(sample, Mapping)]
        return sorted((self.removed | {str(name) for sample in samples for name in sample}) - self.taken)

    def _make(self, loaded: Loaded, selection: Selection, step: int, number: int, stream_id: int) -> Any:
        own = self.specifics.get(stream_id, _COMMON).collator
        columns = None if self.stack_columns is None or own is not None else loaded.columns(selection)
        if columns is not None and self.stack_columns is not None:
            return self.stack_columns(columns)
        collator, samples = own or self.collator, loaded.samples(selection)
        if stream_id in self.compared:
            _check_same_columns(samples, self.taken)
        if collates_without_randomness(collator):
            return collator(samples)
        with seeded(self.seed, step - 1, self.rank, number):
            return collator(samples)

    def _pinned(self, inputs: Any) -> Any:
        if not self.pin_memory or not isinstance(inputs, Mapping):
            return inputs
        return {
            name: value.pin_memory()
            if isinstance(value, Tensor) and value.device.type == "cpu" and value.layout is torch.strided
            else value
            for name, value in inputs.items()
        }


def _unfit_values(samples: Sequence[Any]) -> list[str]:
    """Describes values that few collators take: a sentence each."""
    rows = [sample for sample in samples if isinstance(sample, Mapping)]
    missing = sorted({str(name) for row in rows for name, value in row.items() if value is None})
    texts = [name for name in LABEL_COLUMNS if any(isinstance(row.get(name), str) for row in rows)]
    notes = [f"Some of its samples have no value (None) in {missing}."] if missing else []
    return notes + ([f"Its labels in {texts} are text: number the classes."] if texts else [])


def collates_without_randomness(collator: Any) -> bool:
    """Whether a collator is known to draw no random numbers."""
    if type(collator) is RemoveColumnsCollator:
        collator = collator.data_collator
    if type(collator) is DataCollatorForLanguageModeling:
        return not collator.mlm
    return collator in _FUNCTIONS or type(collator) in _COLLATORS


def batch_mapping(inputs: Any) -> Mapping[str, Any]:
    """Returns the collated micro-batch if it is a mapping of model inputs, else raises a `TypeError`."""
    if not isinstance(inputs, dict | Mapping):
        raise wrong_type(
            "data_collator", f"The data_collator must return a mapping of model inputs, got {type(inputs).__name__}."
        )
    return inputs


def have_same_keys(samples: Sequence[Any]) -> bool:
    """Whether samples are dicts with equal keys."""
    return set(map(type, samples)) == {dict} and len(set(map(frozenset, samples))) == 1


def _check_same_columns(samples: Sequence[Any], taken: frozenset[str] | None) -> None:
    """Refuses samples with different columns: many collators keep the first sample's columns only."""
    if have_same_keys(samples):
        return
    columns = {frozenset(sample) for sample in samples if isinstance(sample, Mapping)}
    columns = columns if taken is None else {own & taken for own in columns}
    if len(columns) > 1:
        differing = sorted(set.union(*map(set, columns)) - set.intersection(*map(set, columns)), key=str)
        raise wrong_value("columns", f"Samples have different columns: only some have {differing}.", found=differing)


def _pick(rows: Sequence[Row], selection: Selection) -> Sequence[Row]:
    return rows[selection] if isinstance(selection, slice) else [rows[place] for place in selection.tolist()]


def _numbers(count: int, selection: Selection) -> Sequence[int]:
    numbers: Sequence[int] = range(count)[selection] if isinstance(selection, slice) else selection.tolist()
    return numbers
