"""How many tokens planned samples have."""

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any, Protocol

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mixer.loading.preprocessing import preprocessed
from mixer.mixture.plan import Plan
from mixer.mixture.planner import Planner
from mixer.mixture.stream import Stream, read_from
from mixer.utils.arrays import Int64Array
from mixer.utils.random_state import seeded

_NUM_LOOKED_AT = 256  # samples from which a mean is taken
_MAX_READ = 50_000  # samples that are read one by one for a figure that nothing goes by


class _Lengths(Protocol):
    def total(self, indices: Int64Array) -> int:
        """Gives the tokens of some samples together."""


class PlannedTokens:
    """Counts the tokens of plans, as the trainer counts those of steps.

    Args:
        streams: The streams.
        planner: What they draw.
        is_needed: Whether something goes by tokens: then those of every planned sample are counted. Else a mean over
            some samples stands for a stream of more than 50 000 samples that would have to be read one by one.

    Attributes:
        estimated: Names of the streams whose tokens are estimated from some of their samples.
    """

    def __init__(self, streams: Sequence[Stream], planner: Planner, is_needed: bool):
        self._planner = planner
        self.estimated: list[str] = []
        with seeded(0):  # as below
            sources = zip(streams, read_from(streams), strict=True)
            self._lengths = [self._lengths_of(stream, source, is_needed) for stream, source in sources]

    def of(self, plan: Plan) -> Int64Array:
        """Counts the tokens of a plan.

        Args:
            plan: The plan.

        Returns:
            int64 `[num_streams]`.
        """
        tokens = np.zeros(len(self._lengths), dtype=np.int64)
        for share in self._planner.rank_share(plan, 0, 1):
            tokens[share.stream_id] = self._lengths[share.stream_id].total(share.indices)
        return tokens

    def _lengths_of(self, stream: Stream, source: Any, is_needed: bool) -> _Lengths:
        if stream.is_memory:
            return _ReadLengths(source)
        dataset = preprocessed(source, stream.preprocess)
        if stream.is_iterable:
            self.estimated.append(stream.name)
            return _MeanLength([tokens_of(row) for row in islice(dataset, _NUM_LOOKED_AT)])
        if (column := _column_lengths(dataset)) is not None:
            return _KnownLengths(column)
        if is_needed or len(dataset) <= _MAX_READ:
            return _ReadLengths(dataset, len(dataset))
        self.estimated.append(stream.name)
        places = np.linspace(0, len(dataset) - 1, _NUM_LOOKED_AT).astype(np.int64)
        return _MeanLength([tokens_of(dataset[int(place)]) for place in places])


class _KnownLengths:
    def __init__(self, lengths: Int64Array):
        self._lengths = lengths

    def total(self, indices: Int64Array) -> int:
        return int(self._lengths[indices].sum())


class _MeanLength:
    """So many tokens a sample, rounded over all samples so far and not in each step."""

    def __init__(self, lengths: Sequence[int]):
        self._mean = float(np.mean(lengths)) if lengths else 0.0
        self._num_samples = 0

    def total(self, indices: Int64Array) -> int:
        before = round(self._num_samples * self._mean)
        self._num_samples += len(indices)
        return round(self._num_samples * self._mean) - before


class _ReadLengths:
    """Reads samples, and remembers their tokens where they are numbered; what a memory holds changes."""

    def __init__(self, dataset: Any, length: int = 0):
        self._dataset = dataset
        self._known = np.full(length, -1, dtype=np.int64)

    def total(self, indices: Int64Array) -> int:
        if not len(self._known):
            return sum(self._read(indices))
        new = indices[self._known[indices] < 0]
        if len(new):
            self._known[new] = self._read(new)
        return int(self._known[indices].sum())

    def _read(self, indices: Int64Array) -> list[int]:
        with seeded(0):  # what a data set draws at random here must not show elsewhere
            return [tokens_of(self._dataset[int(index)]) for index in indices]


def tokens_of(sample: Any) -> int:
    """Counts the tokens of a sample as `tokens_per_row` counts those of a collated one.

    Args:
        sample: The sample.

    Returns:
        What its mask leaves, else how many there are; 0 for a sample without tokens.
    """
    if not isinstance(sample, Mapping):
        return 0
    mask, ids = sample.get("attention_mask"), sample.get("input_ids")
    if mask is not None and (np.ndim(mask) == 1 or (ids is not None and np.shape(mask) == np.shape(ids))):
        return int(np.sum(np.asarray(mask)))
    return int(np.size(np.asarray(ids))) if ids is not None and np.ndim(ids) in (1, 2) else 0


def _column_lengths(dataset: Any) -> Int64Array | None:
    """Reads the lengths of all samples off their table, where there is one and no mask."""
    if not isinstance(dataset, datasets.Dataset) or dataset.format["type"] == "custom":
        return None
    if "attention_mask" in dataset.column_names or "input_ids" not in dataset.column_names:
        return None
    kind = dataset.data.schema.field("input_ids").type
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind)) or pa.types.is_nested(kind.value_type):
        return None
    table = dataset.select_columns(["input_ids"]).with_format("arrow")[:]
    return np.asarray(pc.list_value_length(table["input_ids"]), dtype=np.int64)
