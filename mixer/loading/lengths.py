"""Samples of similar length in the same micro-batch, and micro-batches of so many tokens."""

from collections.abc import Mapping, Sequence
from typing import Any

import datasets
import numpy as np

from mixer.loading.collate import Loaded
from mixer.loading.micro_batches import MicroBatchSlice
from mixer.mixture.bad_samples import BrokenSample
from mixer.mixture.cursors import StreamShare
from mixer.utils.arrays import Int64Array

_ALL = slice(None)


class Lengths:
    """Knows how long samples are.

    Args:
        sources: The streams' data sets.
        length_column: Name of a column of lengths, as `length_column_name` of the training arguments.
        input_name: The input whose length counts where there is no such column.
    """

    def __init__(self, sources: Sequence[Any], length_column: str = "length", input_name: str = "input_ids"):
        self._length_column, self._input_name = length_column, input_name
        self._columns = [_column(source, length_column) for source in sources]

    @property
    def are_known(self) -> bool:
        """Whether all data sets have the column, so that each rank knows the lengths of all ranks' samples."""
        return all(column is not None for column in self._columns)

    def look_up(self, share: Sequence[StreamShare]) -> Int64Array:
        """Reads the lengths of samples off the column.

        Args:
            share: The samples, of data sets that have it.

        Returns:
            int64 `[num_samples]`: lengths, stream after stream.
        """
        parts = [self._columns[part.stream_id][part.indices.tolist()][self._length_column] for part in share]
        return np.concatenate([np.zeros(0, dtype=np.int64), *(np.asarray(part, dtype=np.int64) for part in parts)])

    def measure(self, share: Sequence[StreamShare], loaded: Loaded) -> Int64Array:
        """Gives the lengths of samples that are loaded.

        Args:
            share: Which samples they are.
            loaded: The samples.

        Returns:
            int64 `[num_samples]`: lengths.

        Raises:
            ValueError: If a sample has neither a length nor the input.
        """
        if self.are_known:  # the column may be none that the model takes, and so not be loaded
            return self.look_up(share)
        num_samples = sum(len(part.indices) for part in share)
        if loaded.is_stacked and num_samples:
            return np.full(num_samples, self._length(loaded.samples(slice(0, 1))[0]), dtype=np.int64)
        return np.array([self._length(sample) for sample in loaded.samples(_ALL)], dtype=np.int64)

    def _length(self, sample: Any) -> int:
        if isinstance(sample, BrokenSample):  # it is left out
            return 0
        if isinstance(sample, Mapping):
            if self._length_column in sample:
                return int(sample[self._length_column])
            if self._input_name in sample:
                return len(sample[self._input_name])
        found = list(sample) if isinstance(sample, Mapping) else type(sample).__name__
        raise ValueError(
            f"Micro-batches by length need samples with {self._input_name!r} or a column {self._length_column!r} "
            f"(length_column_name), but a sample is {found}."
        )


def deal_by_length(
    stream_ids: Int64Array, lengths: Int64Array, rank: int, world_size: int, max_samples: int, is_by_stream: bool
) -> Int64Array:
    """Deals a step's samples out to the ranks, so many neighbours in length at a time as make a micro-batch.

    The ranks take turns from long to short, and every second time in reverse, so that none has much more to do.

    Args:
        stream_ids: int64 `[total]`: the stream of each sample, ascending.
        lengths: int64 `[total]`: its length.
        rank: The rank.
        world_size: Number of ranks.
        max_samples: Most samples of a micro-batch.
        is_by_stream: Whether each stream is dealt out by itself.

    Returns:
        int64 `[count]`, ascending: which samples the rank has; they fit into as many micro-batches on every rank.
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
    """Gives how many samples a rank has at most where they are dealt out by length.

    Args:
        count: Number of samples.
        world_size: Number of ranks.
        max_samples: Most samples of a micro-batch.

    Returns:
        The largest number.
    """
    return max(len(_turns(count, rank, world_size, max_samples)) for rank in range(world_size))


def _turns(count: int, rank: int, world_size: int, max_samples: int) -> Int64Array:
    """Gives a rank's places among so many that are dealt out in pieces of at most `max_samples`."""
    num_rounds = -(-count // (world_size * max_samples))
    ends = np.arange(num_rounds * world_size + 1) * count // max(num_rounds * world_size, 1)
    pieces = [number * world_size + (world_size - 1 - rank if number % 2 else rank) for number in range(num_rounds)]
    return np.concatenate([np.zeros(0, dtype=np.int64), *(np.arange(ends[piece], ends[piece + 1]) for piece in pieces)])


def sort_by_length(stream_ids: Int64Array, lengths: Int64Array, is_by_stream: bool) -> Int64Array:
    """Orders samples from long to short: what does not fit into memory shows at once.

    Args:
        stream_ids: int64 `[count]`: the stream of each sample, ascending.
        lengths: int64 `[count]`: its length.
        is_by_stream: Whether each stream is ordered by itself.

    Returns:
        int64 `[count]`: places of the samples.
    """
    if is_by_stream:
        return np.lexsort((-lengths, stream_ids))
    return np.argsort(-lengths, kind="stable")


def split_by_tokens(
    stream_ids: Int64Array, lengths: Int64Array, max_tokens: int, is_by_stream: bool
) -> list[MicroBatchSlice]:
    """Cuts samples into micro-batches that hold at most so many tokens, padding included.

    Args:
        stream_ids: int64 `[count]`: the stream of each sample.
        lengths: int64 `[count]`: its length.
        max_tokens: Most tokens of a micro-batch; a longer sample has one for itself.
        is_by_stream: Whether a micro-batch holds one stream only.

    Returns:
        The slices, in the given order.
    """
    slices: list[MicroBatchSlice] = []
    start = longest = 0
    ids = stream_ids.tolist()
    for place, length in enumerate(lengths.tolist()):
        longest = max(longest, length)
        is_full = longest * (place + 1 - start) > max_tokens or (is_by_stream and ids[place] != ids[start])
        if is_full and place > start:
            slices.append(MicroBatchSlice(start, place, ids[start] if is_by_stream else -1))
            start, longest = place, length
    if start < len(ids):
        slices.append(MicroBatchSlice(start, len(ids), ids[start] if is_by_stream else -1))
    return slices


def _column(source: Any, name: str) -> Any:
    if not isinstance(source, datasets.Dataset) or name not in source.column_names:
        return None
    return source.select_columns([name]).with_format("numpy")
