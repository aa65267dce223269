"""Token counts of planned samples."""

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch

from mixer.loading.collate import batch_mapping
from mixer.loading.preprocessing import preprocessed
from mixer.mixture.planner import Planner
from mixer.mixture.step_plan import StepPlan
from mixer.mixture.stream import Stream
from mixer.mixture.streams import read_from
from mixer.models.labels import shifts_labels
from mixer.models.row_losses import has_labels, items_per_row, tokens_per_row
from mixer.run.hf_compat import loss_shifts_labels
from mixer.tools.recipe.recipe import Recipe
from mixer.utils.arrays import Int64Array
from mixer.utils.random_state import drawn_places, seeded

_NUM_SAMPLED = 256  # samples that give a mean
_MAX_READ = 50_000  # samples that are read one by one for a figure that no rule goes by


class PlannedTokens:
    """Counts the tokens of plans, as the trainer counts those of steps.

    Args:
        streams: The streams.
        planner: The planner of the plans.
        is_needed: Whether a rule or the budget goes by tokens: then those of every planned sample are counted. Else a
            mean over some samples stands for a stream of more than 50,000 samples that have to be read one by one.

    Attributes:
        estimated: Names of the streams whose tokens are estimated from some of their samples.
    """

    def __init__(self, streams: Sequence[Stream], planner: Planner, is_needed: bool):
        self._planner = planner
        self.estimated: list[str] = []
        with seeded(0):  # as below
            sources = zip(streams, read_from(streams), strict=True)
            self._lengths = [self._lengths_of(stream, source, is_needed) for stream, source in sources]

    def of(self, plan: StepPlan) -> Int64Array:
        """Counts the tokens of a plan, int64 `[num_streams]`."""
        tokens = np.zeros(len(self._lengths), dtype=np.int64)
        for share in self._planner.rank_share(plan, 0, 1):
            tokens[share.stream_id] = self._lengths[share.stream_id].total(share.indices)
        return tokens

    def _lengths_of(self, stream: Stream, source: Any, is_needed: bool) -> "_Lengths | _MeanLength":
        if stream.is_memory:
            return _Lengths(source, None)
        dataset = preprocessed(source, stream.preprocess)
        if not stream.is_iterable:
            if (column := _column_lengths(dataset)) is not None:
                return _Lengths(dataset, column)
            if is_needed or len(dataset) <= _MAX_READ:
                return _Lengths(dataset, np.full(len(dataset), -1, dtype=np.int64))
        self.estimated.append(stream.name)
        if stream.is_iterable:
            return _MeanLength([tokens_of(row) for row in islice(dataset, _NUM_SAMPLED)])
        places = drawn_places(len(dataset), _NUM_SAMPLED, 0).tolist()
        return _MeanLength([tokens_of(dataset[place]) for place in places])


class PlannedLabels:
    """Counts the labels of plans as the trainer counts those of steps: it collates their samples.

    Args:
        recipe: The recipe of the run.
        streams: Its streams.
        user: What counts labels, for errors.

    Raises:
        ValueError: If a stream has samples that only training reads.
    """

    def __init__(self, recipe: Recipe, streams: Sequence[Stream], user: str):
        unread = [stream.name for stream in streams if stream.is_iterable or stream.is_memory]
        if unread:
            raise ValueError(
                f"{user} counts labels, and those of {unread} are known in training only: rows of an iterable data set "
                "and entries of a buffer are not read ahead. Simulate with amounts in tokens."
            )
        trainer = recipe.build_parts(has_weights=False).trainer
        self._loader, self._num_streams, self._user = trainer.get_train_dataloader(), len(streams), user
        self._shifts = shifts_labels(trainer.model, loss_shifts_labels(trainer))

    def of(self, plan: StepPlan) -> Int64Array:
        """Counts the labels of a plan, int64 `[num_streams]`."""
        labels = np.zeros(self._num_streams, dtype=np.int64)
        for micro in self._loader.load(plan).micro_batches:
            inputs = batch_mapping(micro.inputs)
            if not has_labels(inputs):
                raise ValueError(f"{self._user} counts labels, but a micro-batch has none, only {sorted(inputs)}.")
            labels += micro.by_stream(items_per_row(inputs, self._shifts).numpy(), self._num_streams)
        return labels


class _MeanLength:
    """The mean number of tokens per sample, rounded over all samples so far and not in each step."""

    def __init__(self, lengths: Sequence[int]):
        self._mean = float(np.mean(lengths)) if lengths else 0.0
        self._num_samples = 0

    def total(self, indices: Int64Array) -> int:
        before = round(self._num_samples * self._mean)
        self._num_samples += len(indices)
        return round(self._num_samples * self._mean) - before


class _Lengths:
    """The tokens of each sample; -1 for one that is not read yet, `None` for a memory, whose entries change."""

    def __init__(self, dataset: Any, known: Int64Array | None):
        self._dataset, self._known = dataset, known

    def total(self, indices: Int64Array) -> int:
        if self._known is None:
            return sum(self._read(indices))
        new = indices[self._known[indices] < 0]
        if len(new):
            self._known[new] = self._read(new)
        return int(self._known[indices].sum())

    def _read(self, indices: Int64Array) -> list[int]:
        with seeded(0):  # a data set that draws at random here must not change what is drawn elsewhere
            return [tokens_of(self._dataset[int(index)]) for index in indices]


def tokens_of(sample: Any) -> int:
    """Counts the tokens of a sample as those of a collated one are counted: 0 for one without tokens."""
    if not isinstance(sample, Mapping):
        return 0
    tokens = {name: sample[name] for name in ("attention_mask", "input_ids") if sample.get(name) is not None}
    counts = tokens_per_row({name: torch.as_tensor(values)[None] for name, values in tokens.items()})
    return int(counts.sum())


def _column_lengths(dataset: Any) -> Int64Array | None:
    """Lengths of all samples by their table, if there is a table without a mask."""
    if not isinstance(dataset, datasets.Dataset) or dataset.format["type"] == "custom":
        return None
    if "attention_mask" in dataset.column_names or "input_ids" not in dataset.column_names:
        return None
    kind = dataset.data.schema.field("input_ids").type
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind)) or pa.types.is_nested(kind.value_type):
        return None
    table = dataset.select_columns(["input_ids"]).with_format("arrow")[:]
    return np.asarray(pc.list_value_length(table["input_ids"]), dtype=np.int64)
