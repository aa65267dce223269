"""Lengths of samples, and groups of samples of similar length."""

from collections.abc import Mapping, Sequence
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mixer.loading.collate import Loaded
from mixer.mixture.bad_samples import BrokenSample
from mixer.mixture.step_plan import StreamShare
from mixer.utils.arrays import Int64Array
from mixer.utils.errors import wrong_value
from mixer.utils.random_state import seeded

_UNREAD = -1
_ALL = slice(None)


class Lengths:
    """Provides sample lengths.

    Args:
        sources: Datasets of the streams.
        length_column: Name of the length column, as `length_column_name` of the training arguments.
        input_name: Input whose length counts if there is no such column.
    """

    def __init__(self, sources: Sequence[Any], length_column: str = "length", input_name: str = "input_ids"):
        self._length_column, self._input_name = length_column, input_name
        self._sources, self._columns = sources, [_column(source, length_column) for source in sources]
        self._read: dict[int, Int64Array] = {}  # lengths of the streams whose samples have to be read for them

    @property
    def are_known(self) -> bool:
        """Whether all datasets have the column, so that each rank knows the lengths of all ranks' samples."""
        return all(column is not None for column in self._columns)

    def look_up(self, share: Sequence[StreamShare]) -> Int64Array:
        """Reads sample lengths from the column, int64 `[num_samples]`, stream by stream."""
        parts = [self._columns[part.stream_id][part.indices.tolist()][self._length_column] for part in share]
        return np.concatenate([np.zeros(0, dtype=np.int64), *(np.asarray(part, dtype=np.int64) for part in parts)])

    def of_rows(self, stream_id: int, indices: Int64Array) -> Int64Array:
        """Returns the lengths of samples of a stream before they are drawn.

        They come from the column, or from the input if it is stored; other samples are read, once in a run.

        Args:
            stream_id: The stream, which can be indexed.
            indices: int64 `[count]`: indices into its dataset.

        Returns:
            int64 `[count]`: lengths; 0 of samples that cannot be read or have none, which is told when they are drawn.
        """
        source, column = self._sources[stream_id], self._columns[stream_id]
        if column is not None:
            return np.asarray(column[indices.tolist()][self._length_column], dtype=np.int64)
        if _stores_lists(source, self._input_name):
            rows = source.select_columns([self._input_name]).with_format("arrow")[indices.tolist()]
            lengths = pc.fill_null(pc.list_value_length(rows.column(self._input_name)), 0)
            return np.asarray(lengths.to_numpy(), dtype=np.int64)
        if stream_id not in self._read:
            self._read[stream_id] = np.full(len(source), _UNREAD, dtype=np.int64)
        known = self._read[stream_id]
        for index in indices[known[indices] == _UNREAD].tolist():
            known[index] = self._read_length(source, index)
        return known[indices]

    def _read_length(self, source: Any, index: int) -> int:
        with seeded(index):  # random numbers drawn here must not affect the run
            try:
                return self._length(source[index])
            except Exception:  # told when it is drawn, or skipped
                return 0

    def measure(self, share: Sequence[StreamShare], loaded: Loaded) -> Int64Array:
        """Returns the lengths of loaded samples.

        Args:
            share: Which samples they are.
            loaded: The samples.

        Returns:
            int64 `[num_samples]`: lengths.

        Raises:
            ValueError: If a sample has neither a length nor the input.
        """
        if self.are_known:  # the model may not take the column, so that it is not loaded
            return self.look_up(share)
        return self.of(loaded.samples(_ALL))

    def of(self, samples: Sequence[Any]) -> Int64Array:
        """Returns the lengths of samples of any data set, int64 `[num_samples]`; see `measure`."""
        return np.array([self._length(sample) for sample in samples], dtype=np.int64)

    def _length(self, sample: Any) -> int:
        if isinstance(sample, BrokenSample):  # skipped
            return 0
        columns = sample if isinstance(sample, Mapping) else {}
        if self._length_column in columns:
            return int(columns[self._length_column])
        if self._input_name in columns:
            return len(columns[self._input_name])
        description = f"has {list(sample)}" if isinstance(sample, Mapping) else f"is a {type(sample).__name__}"
        raise wrong_value(
            "length_column_name",
            f"Micro-batches by length need samples with {self._input_name!r} or a column {self._length_column!r} "
            f"(length_column_name), but a sample {description}.",
        )


def deal_by_length(
    stream_ids: Int64Array, lengths: Int64Array, rank: int, world_size: int, max_samples: int, is_by_stream: bool
) -> Int64Array:
    """Distributes a step's samples over ranks in groups of similar length, each the size of a micro-batch.

    Ranks take turns from long to short, in reverse order every second time, to balance their load.

    Args:
        stream_ids: int64 `[total]`: stream of each sample, ascending.
        lengths: int64 `[total]`: its length.
        rank: The rank.
        world_size: Number of ranks.
        max_samples: Maximum samples per micro-batch.
        is_by_stream: Whether to distribute each stream separately.

    Returns:
        int64 `[count]`, ascending: the rank's samples; they fit into equally many micro-batches on every rank.
    """
    order = sort_by_length(stream_ids, lengths, is_by_stream)
    if not is_by_stream:
        return np.sort(order[_turns(len(order), rank, world_size, max_samples)])
    ends = np.cumsum(np.bincount(stream_ids))
    own = [
        part[_turns(len(part), (rank + stream_id) % world_size, world_size, max_samples)]
        for stream_id, part in enumerate(np.split(order, ends[:-1]))
    ]
    return np.sort(np.concatenate(own))


def most_dealt(count: int, world_size: int, max_samples: int) -> int:
    """Returns the maximum number of samples per rank when `count` samples are distributed by length."""
    return max(len(_turns(count, rank, world_size, max_samples)) for rank in range(world_size))


def _turns(count: int, rank: int, world_size: int, max_samples: int) -> Int64Array:
    """Returns a rank's places among `count`, distributed in groups of at most `max_samples`."""
    num_rounds = -(-count // (world_size * max_samples))
    ends = np.arange(num_rounds * world_size + 1) * count // max(num_rounds * world_size, 1)
    pieces = [number * world_size + (world_size - 1 - rank if number % 2 else rank) for number in range(num_rounds)]
    return np.concatenate([np.zeros(0, dtype=np.int64), *(np.arange(ends[piece], ends[piece + 1]) for piece in pieces)])


def sort_by_length(stream_ids: Int64Array, lengths: Int64Array, is_by_stream: bool) -> Int64Array:
    """Sorts samples from long to short, so that an out-of-memory error shows at once.

    Args:
        stream_ids: int64 `[count]`: stream of each sample, ascending.
        lengths: int64 `[count]`: its length.
        is_by_stream: Whether to sort each stream separately.

    Returns:
        int64 `[count]`: places of the samples.
    """
    if is_by_stream:
        return np.lexsort((-lengths, stream_ids))
    return np.argsort(-lengths, kind="stable")


def _stores_lists(source: Any, name: str) -> bool:
    """Whether a dataset stores an input as lists, and gives what it stores."""
    if not isinstance(source, datasets.Dataset) or name not in source.column_names:
        return False
    kind = source.data.schema.field(name).type
    is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    return bool(is_list and source.format["type"] != "custom")


def _column(source: Any, name: str) -> Any:
    if not isinstance(source, datasets.Dataset) or name not in source.column_names:
        return None
    return source.select_columns([name]).with_format("numpy")
