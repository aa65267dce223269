"""One optimizer step as data: its batch on a rank, its counts, and its result."""

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mixer.distributed.signals import NUM_SIGNALS
from mixer.loading.collate import Loaded, Selection
from mixer.mixture.bad_samples import BrokenSample
from mixer.mixture.step_plan import StepPlan, StreamShare, indices_of, positions_of
from mixer.policies.contract import Unit
from mixer.utils.arrays import BoolArray, FloatArray, Int64Array
from mixer.utils.device import to_host


@dataclass(frozen=True)
class StepCounts:
    """Counts of a step.

    Args:
        items: int64 `[num_streams]`: loss terms.
        tokens: int64 `[num_streams]`: tokens.
        num_larger: Ranks with a larger micro-batch than any before.
        num_first: Labels that are not loss terms, as the first of their row, but that the Trainer counts.
        skipped: int64 `[num_streams]`: samples skipped because they could not be loaded; `None` for none.
        signals: `[NUM_SIGNALS]`: number of ranks that received each signal that ends a run.
        num_rows: Rows of the micro-batches.
        squared_items: Sum of the squares of the rows' items.
        mixed_up: Rows and samples of micro-batches of several streams whose rows are not their samples.
        labels: int64 `[num_streams]`: labels that the loss learns, however it is normalised; `None` for none.
    """

    items: Int64Array
    tokens: Int64Array
    num_larger: int = 0
    num_first: int = 0
    skipped: Int64Array | None = None
    signals: tuple[int, ...] = (0,) * NUM_SIGNALS
    num_rows: int = 0
    squared_items: int = 0
    mixed_up: tuple[int, int] = (0, 0)
    labels: Int64Array | None = None

    @property
    def is_even(self) -> bool:
        """Whether all rows have equally many items: only then is n Σ xᵢ² = (Σ xᵢ)² (Cauchy-Schwarz)."""
        return self.num_rows * self.squared_items == self.num_items**2

    def amounts(self, unit: Unit) -> Int64Array:
        """Labels of the streams if the unit is labels, else tokens: int64 `[num_streams]`."""
        if unit != "labels":
            return self.tokens
        return np.zeros_like(self.tokens) if self.labels is None else self.labels

    @functools.cached_property
    def num_items(self) -> int:
        """Loss terms of all streams."""
        return int(self.items.sum())


@dataclass(frozen=True)
class MicroBatch:
    """One micro-batch of one rank.

    Args:
        inputs: Output of the collator.
        stream_ids: int64 `[num_samples]`: stream of each sample.
        is_padding: Whether it only keeps this rank in step with the others and does not count.
        share: Samples of this rank, those of the micro-batch among them; empty if they are of no stream.
        selection: Which of these it has.
        is_drawn: Whether a step drew them.
    """

    inputs: Any
    stream_ids: Int64Array
    is_padding: bool
    share: Sequence[StreamShare] = ()
    selection: Selection = field(default_factory=lambda: slice(None))
    is_drawn: bool = True

    @property
    def positions(self) -> Int64Array | None:
        """int64 `[num_samples]`: position of each sample in its stream; `None` for samples that no step drew."""
        return positions_of(self.share)[self.selection] if self.share and self.is_drawn else None

    @property
    def indices(self) -> Int64Array | None:
        """int64 `[num_samples]`: index of each sample in its dataset, for errors; `None` if it is of no stream."""
        return indices_of(self.share)[self.selection] if self.share else None

    def by_stream(self, numbers: Int64Array, num_streams: int) -> Int64Array:
        """Sums numbers of its rows by stream: int64 `[num_streams]`."""
        ids = self.stream_ids
        if len(numbers) != len(ids):  # rows of one stream; of several their samples tell the shares
            numbers = np.diff(np.arange(len(ids) + 1) * numbers.sum() // len(ids))
        return np.bincount(ids, weights=numbers, minlength=num_streams).astype(np.int64)

    @functools.cached_property
    def first_stream(self) -> int:
        """Stream of its first sample; 0 if it has no streams."""
        return int(self.stream_ids[0]) if len(self.stream_ids) else 0


@dataclass(frozen=True, eq=False)
class StepBatch(Mapping[str, Any]):
    """All micro-batches of one rank for one optimizer step.

    As a read-only mapping it is the whole batch: each key's values of all micro-batches, concatenated. Tensors are
    concatenated by row if their shapes match (padded to the same length, say), else flattened; values that are neither
    tensors nor lists form a tuple. Padding micro-batches are excluded.

    Args:
        plan: Plan of the step.
        micro_batches: Micro-batches, in order.
        samples: The rank's share and its loaded samples, if they are kept for splitting again.
        broken: Stream id, message and position of each skipped sample.
    """

    plan: StepPlan
    micro_batches: tuple[MicroBatch, ...]
    samples: tuple[list[StreamShare], Loaded] | None = None
    broken: tuple[tuple[int, BrokenSample, int], ...] = ()

    def __contains__(self, key: object) -> bool:
        return any(key in micro.inputs for micro in self.micro_batches)

    def __getitem__(self, key: str) -> Any:
        having = [micro for micro in self.micro_batches if key in micro.inputs]
        if not having:
            raise KeyError(key)
        parts = [micro.inputs[key] for micro in having if not micro.is_padding]
        return _together(parts) if parts else _together([having[0].inputs[key]])[:0]

    def __iter__(self) -> Iterator[str]:
        return iter({key: None for micro in self.micro_batches for key in micro.inputs})

    def __len__(self) -> int:
        return sum(1 for _ in self)


def _together(parts: Sequence[Any]) -> Any:
    """Concatenates the values of one key over micro-batches."""
    if len(parts) == 1 and (isinstance(parts[0], list) or (isinstance(parts[0], Tensor) and parts[0].ndim)):
        return parts[0]
    if all(isinstance(part, Tensor) for part in parts):
        are_alike = all(part.ndim and part.shape[1:] == parts[0].shape[1:] for part in parts)
        return torch.cat(list(parts) if are_alike else [part.flatten() for part in parts])
    if all(isinstance(part, list) for part in parts):
        return [value for part in parts for value in part]
    return tuple(parts)


@dataclass(frozen=True)
class StepResult:
    """A step after its backward.

    `loss/NAME` in the log is the sum of a stream's `loss_sums` over the sum of its `contents.items`, both over the
    steps since the last entry; steps that do not measure the stream, or whose mean of it is not finite, are in neither.
    An item is a label that the loss learns, or a row where the loss is a mean over rows. Loss weights and terms of
    methods are left out. `MicroBatchTraining` adds up the sums, `StepAgreement` the items, `Recorder` the steps.

    Args:
        plan: Its plan.
        contents: Its items and tokens, over all ranks.
        loss_sums: `[num_streams + 1]`, on the device: the sum of each stream's item losses, and last the mean over
            all items by the loss that was back-propagated (before loss weights).
        learning_rate: The learning rate of its optimizer step, of the first group of parameters.
        learning_rate_factor: Factor of the batch size on it.
        item_factors: `[num_streams]`: weight of a stream's item in that mean loss; `None` if all are one.
        measured: bool `[num_streams]`: streams with measured losses; `None` for all.
    """

    plan: StepPlan
    contents: StepCounts
    loss_sums: Tensor
    learning_rate: float
    learning_rate_factor: float
    item_factors: FloatArray | None = None
    measured: BoolArray | None = None

    @functools.cached_property
    def sums(self) -> FloatArray:
        """`[num_streams + 1]`: `loss_sums`, read from the device on first use, for which the host waits."""
        return to_host([self.loss_sums])[0]

    @functools.cached_property
    def losses(self) -> FloatArray:
        """`[num_streams]`: mean losses; NaN without items or measurement."""
        return self._means if self.measured is None else np.where(self.measured, self._means, np.nan)

    @functools.cached_property
    def _means(self) -> FloatArray:
        sums, items = self.sums[:-1], self.contents.items
        means: FloatArray = np.divide(sums, items, out=np.full(len(sums), np.nan), where=items > 0)
        return means

    def bad_streams(self) -> Int64Array:
        """Gives the ids of the streams with a loss that is not finite, but for those of loss weight 0."""
        loss_weights = self.plan.loss_weights
        counts = self.contents.items > 0 if loss_weights is None else (self.contents.items > 0) & (loss_weights != 0)
        return np.flatnonzero(counts & ~np.isfinite(self._means))  # of streams that are not measured: 0, or not finite


def read_together(results: Sequence[StepResult], numbers: Sequence[Tensor | float | None]) -> list[float | None]:
    """Reads what steps left on the device, so that the host waits for it once.

    Args:
        results: The steps; afterwards their `sums` are known.
        numbers: Scalars to read with them.

    Returns:
        The scalars as Python's numbers.
    """
    unread = [result for result in results if "sums" not in vars(result)]
    scalars = [number for number in numbers if isinstance(number, Tensor)]
    if not (unread or scalars):
        return [*numbers]  # type: ignore[list-item]  # none of them is a tensor
    values = iter(to_host([*(result.loss_sums for result in unread), *scalars]))
    for result in unread:
        vars(result)["sums"] = next(values)
    return [float(next(values)) if isinstance(number, Tensor) else number for number in numbers]
