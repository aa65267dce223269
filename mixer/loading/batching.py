"""Which samples of a step a rank trains on, and in which micro-batches."""

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from mixer.loading.collate import Loaded
from mixer.loading.lengths import Lengths, deal_by_length, most_dealt, sort_by_length, split_by_tokens
from mixer.loading.memory import MicroBatchCap
from mixer.loading.micro_batches import MicroBatchSlice, MostOnARank, deal_evenly, split_by_stream, split_mixed
from mixer.mixture.cursors import StreamShare
from mixer.mixture.plan import Plan
from mixer.mixture.planner import Planner
from mixer.utils.arrays import BoolArray, Int64Array

_NOTHING = contextlib.nullcontext()
# Of losses whose rows are unknown, so many streams' are measured in a step, in turns.
STREAMS_IN_TURN = 16


def streams_in_turn(plan: Plan, most: int = STREAMS_IN_TURN) -> BoolArray:
    """Says which streams have micro-batches of their own in a step, where not all can.

    Args:
        plan: The plan.
        most: How many at most.

    Returns:
        bool `[num_streams]`: the next ones of those that have samples in it.
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
        max_samples: Most samples of a micro-batch.
        max_tokens: Most tokens of a micro-batch, padding included, in place of `max_samples`.
        groups_by_length: Whether samples of similar length go into the same micro-batch.
        lengths: How long samples are, for either.
        agree_on_most: Gives the largest of all ranks' numbers, for micro-batches of so many tokens: the ranks run
            equally many, but each only knows its own samples.
    """

    max_samples: int = 8
    max_tokens: int | None = None
    groups_by_length: bool = False
    lengths: Lengths | None = None
    agree_on_most: Callable[[int], int] = int


class MicroBatcher:
    """Deals steps out to ranks and cuts them into micro-batches.

    The present `cap` rules the cutting. Dealing goes by the options, so that a rank keeps its samples of a step when
    the cap is lowered in the midst of it.

    Args:
        planner: The streams and what they draw.
        options: How.
        rank: This rank.
        world_size: Number of ranks.
    """

    def __init__(self, planner: Callable[[], Planner], options: MicroBatchOptions, rank: int, world_size: int):
        self.options = options
        self.cap = MicroBatchCap(options.max_samples, options.max_tokens)
        self._planner, self._rank, self._world_size = planner, rank, world_size

    @property
    def takes_turns(self) -> bool:
        """Whether some streams may have micro-batches of their own while the others share theirs."""
        return self.options.lengths is None

    def share(self, plan: Plan, is_by_stream: bool | BoolArray) -> list[StreamShare]:
        """Looks up this rank's samples of a plan.

        Args:
            plan: The plan.
            is_by_stream: Whether micro-batches will be of one stream each, or which streams' will.

        Returns:
            The shares of the streams that the rank has samples of.
        """
        if not isinstance(is_by_stream, bool):
            parts = [(plan.only(is_by_stream), True), (plan.only(~is_by_stream), False)]
            shares = [share for part, alone in parts if part.total for share in self.share(part, alone)]
            return sorted(shares, key=lambda share: share.stream_id)
        planner, lengths = self._planner(), self.options.lengths
        if lengths is None or not self._deals_by_length:
            # A stream's micro-batches are as many on every rank only as long as all samples are at home.
            return planner.rank_share(plan, self._rank, self._world_size, is_balanced=not is_by_stream)
        whole = planner.rank_share(plan, 0, 1)
        own = deal_by_length(
            ids_of(whole),
            lengths.look_up(whole),
            self._rank,
            self._world_size,
            self.options.max_samples,
            is_by_stream,
        )
        ends = np.cumsum([len(part.indices) for part in whole])
        own_parts = np.split(own, np.searchsorted(own, ends[:-1]))
        picked = []
        for part, end, places in zip(whole, ends.tolist(), own_parts, strict=True):
            if len(places):
                places = places - (end - len(part.indices))
                positions = np.asarray(part.positions, dtype=np.int64)[places]
                picked.append(StreamShare(part.stream_id, positions, part.indices[places]))
        return picked

    @property
    def _deals_by_length(self) -> bool:
        lengths = self.options.lengths
        knows_all = self.options.groups_by_length and lengths is not None and lengths.are_known
        return knows_all and self._world_size > 1

    @property
    def _most_on_a_rank(self) -> MostOnARank:
        if self._deals_by_length:
            return functools.partial(most_dealt, max_samples=self.options.max_samples)
        return deal_evenly

    def split(
        self,
        plan: Plan,
        share: Sequence[StreamShare],
        stream_ids: Int64Array,
        loaded: Loaded,
        is_by_stream: bool | BoolArray,
    ) -> tuple[Int64Array | None, list[MicroBatchSlice]]:
        """Cuts this rank's samples, in the order that suits their lengths.

        Args:
            plan: The plan.
            share: This rank's samples of it.
            stream_ids: int64 `[num_samples]`: the stream of each.
            loaded: The same samples.
            is_by_stream: Whether micro-batches are of one stream each, or which streams' are.

        Returns:
            int64 `[num_samples]`, the order of the samples, or `None` for that in which they are; and the micro-batches
            in it.

        Raises:
            ValueError: If a sample has no length where one is needed.
        """
        if not isinstance(is_by_stream, bool):
            return self._cut_in_turns(plan, stream_ids, is_by_stream)
        options, cap, order = self.options, self.cap, None
        lengths = stream_ids if options.lengths is None else options.lengths.measure(share, loaded)
        if options.groups_by_length:
            order = sort_by_length(stream_ids, lengths, is_by_stream)
            lengths, stream_ids = lengths[order], stream_ids[order]
        if cap.max_tokens is not None:
            return order, split_by_tokens(stream_ids, lengths, cap.max_tokens, is_by_stream)
        dealing = (self._world_size, cap.max_samples, self._most_on_a_rank)
        if is_by_stream:
            own_counts = np.bincount(stream_ids, minlength=len(plan.counts)).tolist()
            return order, split_by_stream(plan, own_counts, *dealing)
        return order, split_mixed(plan, len(stream_ids), *dealing)

    def _cut_in_turns(
        self, plan: Plan, stream_ids: Int64Array, are_alone: BoolArray
    ) -> tuple[Int64Array, list[MicroBatchSlice]]:
        """Puts the streams that have micro-batches of their own first."""
        order = np.argsort(~are_alone[stream_ids], kind="stable")
        alone, rest = plan.only(are_alone), plan.only(~are_alone)
        own_counts = np.bincount(stream_ids, minlength=len(plan.counts)) * are_alone
        num_alone, dealing = int(own_counts.sum()), (self._world_size, self.cap.max_samples)
        mixed = split_mixed(rest, len(stream_ids) - num_alone, *dealing) if rest.total else []
        shifted = [MicroBatchSlice(cut.start + num_alone, cut.stop + num_alone) for cut in mixed]
        return order, split_by_stream(alone, own_counts.tolist(), *dealing) + shifted

    def share_errors(self) -> contextlib.AbstractContextManager[None]:
        """Keeps the ranks together where they are about to agree on a number and one of them fails.

        Returns:
            What is to be done meanwhile stands in this context.
        """
        return _NOTHING if self.options.max_tokens is None else self._share_errors()

    @contextlib.contextmanager
    def _share_errors(self) -> Iterator[None]:
        try:
            yield
        except Exception:
            self.share_nothing()
            raise

    def share_nothing(self) -> None:
        """Takes part in what the ranks agree on, without a micro-batch."""
        if self.options.max_tokens is not None:
            self.options.agree_on_most(0)

    def as_many_as_others(self, slices: list[MicroBatchSlice], num_samples: int) -> list[MicroBatchSlice]:
        """Adds empty micro-batches where another rank has more.

        Args:
            slices: This rank's micro-batches.
            num_samples: This rank's samples.

        Returns:
            As many micro-batches as on every other rank.
        """
        if self.options.max_tokens is None:
            return slices
        num_missing = self.options.agree_on_most(len(slices)) - len(slices)
        return slices + [MicroBatchSlice(num_samples, num_samples)] * num_missing


def ids_of(share: Sequence[StreamShare]) -> Int64Array:
    """Says which stream each sample of a share is of.

    Args:
        share: The share.

    Returns:
        int64 `[num_samples]`, ascending.
    """
    counts = np.array([len(part.indices) for part in share], dtype=np.int64)
    return np.repeat(np.array([part.stream_id for part in share], dtype=np.int64), counts)


def positions_of(share: Sequence[StreamShare]) -> Int64Array:
    """Says which position of its stream each sample of a share has.

    Args:
        share: The share.

    Returns:
        int64 `[num_samples]`.
    """
    parts = [np.asarray(part.positions, dtype=np.int64) for part in share]
    return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)


def indices_of(share: Sequence[StreamShare]) -> Int64Array:
    """Says where in its stream's data set each sample of a share stands.

    Args:
        share: The share.

    Returns:
        int64 `[num_samples]`.
    """
    return np.concatenate([np.zeros(0, dtype=np.int64), *(part.indices for part in share)])
