"""Splits this rank's samples of a step into micro-batches."""

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from mixer.loading.collate import Loaded
from mixer.loading.lengths import Lengths, deal_by_length, most_dealt, sort_by_length, split_by_tokens
from mixer.loading.micro_batch_caps import MicroBatchCap
from mixer.loading.micro_batches import MicroBatchSlice, deal_evenly, split_evenly, split_part
from mixer.mixture.cursors import StreamShare
from mixer.mixture.planner import Planner
from mixer.mixture.step_plan import StepPlan
from mixer.utils.arrays import BoolArray, Int64Array

# Streams per step whose losses are measured in separate micro-batches, in turns, if rows show no losses.
STREAMS_A_ROUND = 16
_ALONE = contextlib.nullcontext()


def streams_in_turn(plan: StepPlan, most: int = STREAMS_A_ROUND) -> BoolArray:
    """Selects the streams with separate micro-batches in a step when not all can have them.

    Args:
        plan: Plan of the step.
        most: Maximum number of streams.

    Returns:
        bool `[num_streams]`: the next streams, in rotation, among those with samples in the step.
    """
    present = np.flatnonzero(plan.counts)
    are_in = np.zeros(len(plan.counts), dtype=np.bool_)
    if len(present) <= most:
        are_in[present] = True
    else:
        are_in[present[(plan.index * most + np.arange(most)) % len(present)]] = True
    return are_in


@dataclass(frozen=True)
class MicroBatchOptions:
    """How a rank's samples of a step become micro-batches.

    Args:
        max_samples: Maximum samples per micro-batch.
        max_tokens: Maximum tokens per micro-batch, including padding; replaces `max_samples`.
        groups_by_length: Whether to group samples of similar length.
        lengths: Sample lengths, required for both.
        agree_on_most: Returns the maximum of a number over all ranks. With `max_tokens`, each rank only knows its own
            samples, but all must run equally many micro-batches.
    """

    max_samples: int = 8
    max_tokens: int | None = None
    groups_by_length: bool = False
    lengths: Lengths | None = None
    agree_on_most: Callable[[int], int] = int


class MicroBatcher:
    """Distributes steps over ranks and splits them into micro-batches.

    A cap limits the micro-batches. Samples are assigned to ranks by the configured options instead, so that lowering
    the cap mid-step does not change which samples a rank trains on.

    Args:
        planner: Returns the planner.
        options: Options.
        rank: This rank.
        world_size: Number of ranks.
    """

    def __init__(self, planner: Callable[[], Planner], options: MicroBatchOptions, rank: int, world_size: int):
        self.options = options
        self._planner, self._rank, self._world_size = planner, rank, world_size
        knows_all = options.groups_by_length and options.lengths is not None and options.lengths.are_known
        self._deals_by_length = knows_all and world_size > 1
        self._most_on_a_rank = deal_evenly
        if self._deals_by_length:
            self._most_on_a_rank = functools.partial(most_dealt, max_samples=options.max_samples)

    def share(self, plan: StepPlan, is_by_stream: bool | BoolArray) -> list[StreamShare]:
        """Returns this rank's samples of a plan, per stream.

        Args:
            plan: Plan of the step.
            is_by_stream: Whether each micro-batch holds one stream only; bool `[num_streams]` selects these streams.
        """
        if not isinstance(is_by_stream, bool):
            parts = [(plan.only(is_by_stream), True), (plan.only(~is_by_stream), False)]
            shares = [share for part, alone in parts if part.total for share in self.share(part, alone)]
            return sorted(shares, key=lambda share: share.stream_id)
        planner, lengths = self._planner(), self.options.lengths
        if lengths is None or not self._deals_by_length:
            # Without balancing, every rank has equally many micro-batches of each stream.
            return planner.rank_share(plan, self._rank, self._world_size, is_balanced=not is_by_stream)
        whole = planner.rank_share(plan, 0, 1)
        dealing = (self._rank, self._world_size, self.options.max_samples, is_by_stream)
        stream_ids = ids_of(whole)
        are_own = np.zeros(len(stream_ids), dtype=np.bool_)
        are_own[deal_by_length(stream_ids, lengths.look_up(whole), *dealing)] = True
        ends = np.cumsum([len(part.indices) for part in whole])
        return pick(whole, np.split(are_own, ends[:-1]))

    def split(
        self,
        plan: StepPlan,
        share: Sequence[StreamShare],
        stream_ids: Int64Array,
        loaded: Loaded,
        is_by_stream: bool | BoolArray,
        cap: MicroBatchCap,
    ) -> tuple[Int64Array | None, list[MicroBatchSlice]]:
        """Splits this rank's samples into micro-batches, ordered by length where lengths matter.

        Args:
            plan: Plan of the step.
            share: This rank's samples of it.
            stream_ids: int64 `[num_samples]`: stream of each sample.
            loaded: The same samples, loaded.
            is_by_stream: Whether each micro-batch holds one stream only; bool `[num_streams]` selects these streams.
            cap: Maximum size of a micro-batch.

        Returns:
            int64 `[num_samples]`, the order of the samples (`None` for unchanged), and the micro-batches in that order.

        Raises:
            ValueError: If a required sample length is missing.
        """
        options, order = self.options, None
        lengths = stream_ids if options.lengths is None else options.lengths.measure(share, loaded)
        if not isinstance(is_by_stream, bool):  # streams with separate micro-batches come first
            order = np.argsort(~is_by_stream[stream_ids], kind="stable")
        elif options.groups_by_length:
            order = sort_by_length(stream_ids, lengths, is_by_stream)
            lengths, stream_ids = lengths[order], stream_ids[order]
        if cap.max_tokens is not None:
            return order, split_by_tokens(stream_ids, lengths, cap.max_tokens, bool(is_by_stream))
        if is_by_stream is False:
            most = self._most_on_a_rank(plan.total, self._world_size)
            return order, split_part(0, len(stream_ids), most, cap.max_samples)
        own_counts = np.bincount(stream_ids, minlength=len(plan.counts))
        are_alone = np.full(len(plan.counts), is_by_stream)
        dealing = (self._world_size, cap.max_samples, self._most_on_a_rank)
        return order, split_evenly(plan.counts, own_counts, are_alone, *dealing)

    def share_errors(self) -> contextlib.AbstractContextManager[None]:
        """Keeps the ranks' collectives aligned if this rank fails inside the context."""
        return _ALONE if self.options.max_tokens is None else self._sharing_errors()

    @contextlib.contextmanager
    def _sharing_errors(self) -> Iterator[None]:
        try:
            yield
        except Exception:
            self.join_without_samples()
            raise

    def join_without_samples(self) -> None:
        """Takes part in the ranks' agreement without contributing a micro-batch."""
        if self.options.max_tokens is not None:
            self.options.agree_on_most(0)

    def padded_to_other_ranks(self, slices: list[MicroBatchSlice], num_samples: int) -> list[MicroBatchSlice]:
        """Appends empty micro-batches until this rank has as many as every other rank.

        Args:
            slices: Micro-batches of this rank.
            num_samples: Samples of this rank.
        """
        if self.options.max_tokens is None:
            return slices
        num_missing = self.options.agree_on_most(len(slices)) - len(slices)
        return slices + [MicroBatchSlice(num_samples, num_samples)] * num_missing


def pick(share: Sequence[StreamShare], masks: Iterable[Sequence[bool] | BoolArray]) -> list[StreamShare]:
    """Selects samples of a share, with one mask for each of its streams."""
    picked = []
    for part, mask in zip(share, masks, strict=True):
        if all(mask):
            picked.append(part)
        elif any(mask):
            positions = np.asarray(part.positions, dtype=np.int64)
            picked.append(StreamShare(part.stream_id, positions[mask], part.indices[mask]))
    return picked


def ids_of(share: Sequence[StreamShare]) -> Int64Array:
    """Returns the stream of each sample of a share, int64 `[num_samples]`, ascending."""
    counts = np.array([len(part.indices) for part in share], dtype=np.int64)
    return np.array([part.stream_id for part in share], dtype=np.int64).repeat(counts)


def positions_of(share: Sequence[StreamShare]) -> Int64Array:
    """Returns each sample's position in its stream, int64 `[num_samples]`."""
    return np.concatenate([np.zeros(0, dtype=np.int64), *(np.asarray(part.positions) for part in share)])


def indices_of(share: Sequence[StreamShare]) -> Int64Array:
    """Returns each sample's index in its stream's dataset, int64 `[num_samples]`."""
    return np.concatenate([part.indices for part in share]) if share else np.zeros(0, dtype=np.int64)
