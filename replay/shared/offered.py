"""Which samples of a step are offered to a buffer, and what ranks tell each other about them."""

from collections.abc import Iterator, Sequence

import numpy as np
from torch import Tensor

from mixer.distributed.collectives import RankSync
from mixer.loading.loaded_step import MicroBatch
from mixer.mixture.step_plan import StepPlan
from mixer.utils.arrays import BoolArray, FloatArray, Int64Array


class Offered:
    """The samples of some streams in a step, numbered stream after stream, by position; the same on every rank.

    Args:
        plan: The step's plan.
        stream_ids: The streams, ascending.
    """

    def __init__(self, plan: StepPlan, stream_ids: Sequence[int]):
        self._ids = np.array(stream_ids, dtype=np.int64)
        counts = plan.counts[self._ids]
        self.count = int(counts.sum())
        self.stream_ids: Int64Array = np.repeat(self._ids, counts)
        offsets = np.cumsum(counts) - counts
        # A sample's number is its position and what stands here of its stream.
        self._shifts = np.zeros(len(plan.counts), dtype=np.int64)
        self._shifts[self._ids] = offsets - plan.starts[self._ids]
        self._is_offered = np.zeros(len(plan.counts), dtype=bool)
        self._is_offered[self._ids] = True

    def numbers(self, stream_ids: Int64Array, positions: Int64Array) -> Int64Array:
        """Numbers samples of the step.

        Args:
            stream_ids: int64 `[count]`: the stream of each.
            positions: int64 `[count]`: its position there.

        Returns:
            int64 `[count]`: -1 for samples of other streams.
        """
        return np.where(self._is_offered[stream_ids], positions + self._shifts[stream_ids], -1)

    def of_micro_batch(self, micro: MicroBatch) -> Int64Array:
        """Numbers the rows of a micro-batch.

        Args:
            micro: The micro-batch.

        Returns:
            int64 `[num_rows]`: -1 for rows of other streams, and for all of one that counts for nothing.
        """
        if micro.positions is None or micro.is_padding:
            return np.full(len(micro.stream_ids), -1, dtype=np.int64)
        return self.numbers(micro.stream_ids, micro.positions)

    def by_stream(self, numbers: Int64Array) -> Iterator[tuple[int, BoolArray, Int64Array]]:
        """Splits samples by stream.

        Args:
            numbers: int64 `[count]`: their numbers, ascending.

        Yields:
            A stream, bool `[count]` that says which are of it, and their positions there, ascending.
        """
        own = self.stream_ids[numbers]
        for stream_id in np.unique(own).tolist():
            are_own = own == stream_id
            yield stream_id, are_own, numbers[are_own] - self._shifts[stream_id]


class Facts:
    """Numbers about samples, each known to the rank that trains on the sample.

    Args:
        names: What is noted.
        count: Number of samples.
    """

    def __init__(self, names: Sequence[str], count: int):
        self.names, self._count = tuple(names), count
        self._noted: list[tuple[int, Int64Array, Tensor]] = []

    def note(self, name: str, numbers: Int64Array, values: Tensor) -> None:
        """Records what this rank knows.

        Args:
            name: What.
            numbers: int64 `[num_rows]`: of which samples; -1 for those that do not count.
            values: `[num_rows]`, on any device; it is read when all is gathered.
        """
        self._noted.append((self.names.index(name), numbers, values.detach()))

    def gathered(self, rank_sync: RankSync) -> dict[str, FloatArray]:
        """Gathers what all ranks know; all have to call it.

        Args:
            rank_sync: What the ranks agree by.

        Returns:
            By name float64 `[count]`, where something is known of every sample.
        """
        values = np.zeros((len(self.names), self._count))
        are_known = np.zeros(values.shape, dtype=np.int64)
        for place, numbers, own in self._noted:
            counts = numbers >= 0
            values[place, numbers[counts]] = own.double().cpu().numpy()[counts]
            are_known[place, numbers[counts]] = 1
        # One rank knows a sample and the others hold zeros: bit patterns add up to that rank's.
        message = rank_sync.all_reduce_sum(np.stack([values.view(np.int64), are_known]))
        found = message[0].view(np.float64)
        return {name: found[place] for place, name in enumerate(self.names) if message[1][place].all()}
