"""Splits this rank's samples of a step into micro-batches, none larger than a cap."""

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from mixer.loading.collate import Loaded, batch_mapping
from mixer.loading.lengths import Lengths, deal_by_length, most_dealt, sort_by_length
from mixer.loading.loaded_step import MicroBatch
from mixer.mixture.planner import Planner
from mixer.mixture.step_plan import StepPlan, StreamShare, ids_of
from mixer.utils.arrays import BoolArray, Int64Array
from mixer.utils.validation import refusing_damage, whole_number

# Streams per step whose losses are measured in separate micro-batches, in turns, if rows show no losses.
STREAMS_A_ROUND = 16
MostOnARank = Callable[[int, int], int]


class Size(NamedTuple):
    """Size of a micro-batch.

    Args:
        samples: Number of samples.
        elements: Elements of its largest input, including padding: tokens, for text.
    """

    samples: int
    elements: int

    @classmethod
    def largest(cls, micro_batches: Iterable[MicroBatch]) -> "Size":
        """Returns the maximum of each measure over micro-batches."""
        samples = elements = 0
        for micro in micro_batches:
            samples = max(samples, len(micro.stream_ids))
            for value in batch_mapping(micro.inputs).values():
                if isinstance(value, Tensor):
                    elements = max(elements, value.numel())
        return cls(samples, elements)


@dataclass(frozen=True)
class MicroBatchCap:
    """Maximum size of a micro-batch.

    Args:
        max_samples: Maximum samples.
        max_tokens: Maximum tokens, including padding; replaces `max_samples`.

    Example:
        >>> MicroBatchCap(16).halved(Size(10, 1000))
        MicroBatchCap(max_samples=5, max_tokens=None)
    """

    max_samples: int
    max_tokens: int | None = None

    def __str__(self) -> str:
        number, unit = (self.max_samples, "sample") if self.max_tokens is None else (self.max_tokens, "token")
        return f"{number} {unit}" if number == 1 else f"{number} {unit}s"

    def halved(self, largest: Size) -> "MicroBatchCap | None":
        """Halves the cap or the largest micro-batch, whichever is smaller.

        Args:
            largest: Largest micro-batch tried on any rank.

        Returns:
            Smaller cap, or `None` if every micro-batch was a single sample already.
        """
        if largest.samples <= 1:
            return None
        if self.max_tokens is None:
            return replace(self, max_samples=min(self.max_samples, largest.samples) // 2)
        return replace(self, max_tokens=max(1, min(self.max_tokens, largest.elements) // 2))

    def state_dict(self, configured: "MicroBatchCap") -> dict[str, Any]:
        """Returns the cap as plain data; `configured` is the cap set by the arguments."""
        return {"max_samples": self.max_samples, "max_tokens": self.max_tokens, "was_halved": self != configured}

    def lowered_to(self, state: Mapping[str, Any] | None) -> "MicroBatchCap":
        """Returns this cap lowered to a saved cap that was found by halving, or unchanged.

        Args:
            state: Saved state, or `None`.
        """
        if not state:
            return self
        with refusing_damage("the saved micro-batch cap"):
            if not state["was_halved"]:
                return self
            max_samples = whole_number(state["max_samples"], "max_samples", 1)
            max_tokens = self.max_tokens
            if max_tokens is not None and state["max_tokens"] is not None:
                max_tokens = min(max_tokens, whole_number(state["max_tokens"], "max_tokens", 1))
        return MicroBatchCap(min(self.max_samples, max_samples), max_tokens)


@dataclass(frozen=True)
class Splitting:
    """How a rank's samples of a step are split into micro-batches; the same on all ranks.

    Args:
        cap: Largest micro-batch.
        by_stream: Whether each micro-batch contains one stream.
        round_robin: Whether only those of a few streams do, which change from step to step.
        keeps_samples: Whether steps keep their samples, so that they can be split again.
    """

    cap: MicroBatchCap
    by_stream: bool = False
    round_robin: bool = False
    keeps_samples: bool = False

    def measured(self, plan: StepPlan) -> BoolArray | None:
        """Returns the streams whose losses a step shows, bool `[num_streams]`; `None` for all."""
        is_round_robin = self.round_robin and not self.by_stream and plan.loss_weights is None
        return streams_in_turn(plan) if is_round_robin else None

    def separates(self, plan: StepPlan) -> bool | BoolArray:
        """Returns whether the micro-batches of a step contain one stream each, or those of which streams do."""
        measured = self.measured(plan)
        return (self.by_stream or plan.loss_weights is not None) if measured is None else measured


class MicroBatchMemoryError(torch.OutOfMemoryError):
    """A step runs out of memory at this micro-batch size; the message names the cap to set."""


class MicroBatchSlice(NamedTuple):
    """One micro-batch as a slice of a rank's samples.

    Args:
        start: First sample.
        stop: End of the slice; equal to `start` if the rank has no sample left.
        stream_id: Stream of all its samples; -1 if mixed.
    """

    start: int
    stop: int
    stream_id: int = -1


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
        options: Options.
        rank: This rank.
        world_size: Number of ranks.
    """

    def __init__(self, options: MicroBatchOptions, rank: int, world_size: int):
        self.options = options
        self._rank, self._world_size = rank, world_size
        knows_all = options.groups_by_length and options.lengths is not None and options.lengths.are_known
        self._deals_by_length = knows_all and world_size > 1
        self._most_on_a_rank = deal_evenly
        if self._deals_by_length:
            self._most_on_a_rank = functools.partial(most_dealt, max_samples=options.max_samples)

    def share(self, planner: Planner, plan: StepPlan, is_by_stream: bool | BoolArray) -> list[StreamShare]:
        """Returns this rank's samples of a plan, per stream.

        Args:
            planner: The planner, which knows the streams.
            plan: Plan of the step.
            is_by_stream: Whether each micro-batch holds one stream only; bool `[num_streams]` selects these streams.
        """
        if not isinstance(is_by_stream, bool):
            parts = [(plan.only(is_by_stream), True), (plan.only(~is_by_stream), False)]
            shares = [share for part, alone in parts if part.total for share in self.share(planner, part, alone)]
            return sorted(shares, key=lambda share: share.stream_id)
        lengths = self.options.lengths
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
            limits = cap.max_tokens, bool(is_by_stream), options.groups_by_length
            return order, split_by_tokens(stream_ids, lengths, *limits)
        parts = [(-1, plan.total, len(stream_ids))]
        if is_by_stream is not False:
            own_counts = np.bincount(stream_ids, minlength=len(plan.counts))
            parts = parts_of(plan.counts, own_counts, np.full(len(plan.counts), is_by_stream))
        return order, split_evenly(parts, self._world_size, cap.max_samples, self._most_on_a_rank)

    def join_without_samples(self) -> None:
        """Takes part in the ranks' agreement without a micro-batch: this rank has no step, or has failed."""
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


def deal_evenly(count: int, world_size: int) -> int:
    """Returns the maximum samples per rank when `count` samples are distributed evenly."""
    return -(-count // world_size)


def parts_of(counts: Int64Array, own_counts: Int64Array, are_alone: BoolArray) -> list[tuple[int, int, int]]:
    """Returns the parts of a step that share no micro-batch, for `split_evenly`.

    Args:
        counts: int64 `[num_streams]`: samples of the step over all ranks.
        own_counts: int64 `[num_streams]`: samples of this rank.
        are_alone: bool `[num_streams]`: streams with separate micro-batches; those come first, in order.
    """
    parts = [(k, int(counts[k]), int(own_counts[k])) for k in np.flatnonzero(are_alone).tolist()]
    return [*parts, (-1, int(counts[~are_alone].sum()), int(own_counts[~are_alone].sum()))]


def split_evenly(
    parts: Iterable[tuple[int, int, int]],
    world_size: int,
    max_size: int,
    most_on_a_rank: MostOnARank = deal_evenly,
) -> list[MicroBatchSlice]:
    """Splits a rank's samples into as many micro-batches as the rank with most of them needs, full ones first.

    Args:
        parts: The stream of each part, -1 if mixed; its samples over all ranks, and those of this rank.
        world_size: Number of ranks.
        max_size: Maximum samples per micro-batch.
        most_on_a_rank: Maximum samples per rank, given the total and the number of ranks.
    """
    slices: list[MicroBatchSlice] = []
    start = 0
    for stream_id, count, own in parts:
        stop = start + own
        slices += [
            MicroBatchSlice(min(place, stop), min(place + max_size, stop), stream_id)
            for place in range(start, start + most_on_a_rank(count, world_size), max_size)
        ]
        start = stop
    return slices


def split_by_tokens(
    stream_ids: Int64Array, lengths: Int64Array, max_tokens: int, is_by_stream: bool, is_sorted: bool = False
) -> list[MicroBatchSlice]:
    """Splits samples into micro-batches of at most `max_tokens` tokens, including padding.

    Streams in a step have samples of different lengths, even if those of each are alike. Where samples are sorted,
    none is padded to more than twice its length.

    Args:
        stream_ids: int64 `[count]`: stream of each sample.
        lengths: int64 `[count]`: its length.
        max_tokens: Maximum tokens per micro-batch; a longer sample has its own.
        is_by_stream: Whether each micro-batch holds one stream only.
        is_sorted: Whether samples are sorted by length, those of each stream or all.

    Returns:
        Slices, in sample order.
    """
    slices: list[MicroBatchSlice] = []
    start = longest = 0
    ids = stream_ids.tolist()
    for place, length in enumerate(lengths.tolist()):
        longest = max(longest, length)
        is_full = longest * (place + 1 - start) > max_tokens or (is_by_stream and ids[place] != ids[start])
        is_full = is_full or (is_sorted and 2 * length < longest)
        if is_full and place > start:
            slices.append(MicroBatchSlice(start, place, ids[start] if is_by_stream else -1))
            start, longest = place, length
    if start < len(ids):
        slices.append(MicroBatchSlice(start, len(ids), ids[start] if is_by_stream else -1))
    return slices


def split_by_cap(
    stream_ids: Int64Array, lengths: Int64Array | None, cap: MicroBatchCap, is_by_stream: bool
) -> list[slice]:
    """Splits samples into micro-batches by both limits of a cap, in sample order.

    Args:
        stream_ids: int64 `[count]`: stream of each sample.
        lengths: int64 `[count]`: its length; `None` if tokens are not limited.
        cap: The limits.
        is_by_stream: Whether each micro-batch holds one stream only.
    """
    limited = (np.zeros_like(stream_ids), 1) if lengths is None or cap.max_tokens is None else (lengths, cap.max_tokens)
    return [
        slice(start, min(start + cap.max_samples, part.stop))
        for part in split_by_tokens(stream_ids, *limited, is_by_stream)
        for start in range(part.start, part.stop, cap.max_samples)
    ]
