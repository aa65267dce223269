"""Loads the samples of a plan, prefetched by workers if there are any, and collates one rank's micro-batches."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from mixer.loading.batching import MicroBatcher, MicroBatchOptions, ids_of, indices_of, positions_of, streams_in_turn
from mixer.loading.collate import Collation, Collator, Loaded, Selection, StreamSpecifics
from mixer.loading.errors import naming_rows
from mixer.loading.iterable.feed import Feed
from mixer.loading.memory import MicroBatchCap
from mixer.loading.micro_batches import MicroBatchSlice
from mixer.loading.prefetch import Prefetcher
from mixer.loading.reader import SampleError, StreamReader
from mixer.loading.step import MicroBatch, StepBatch
from mixer.loading.transport import Columns, Row, Samples
from mixer.loading.workers import WorkerOptions, Workers
from mixer.mixture.bad_samples import BrokenSample, Skipping
from mixer.mixture.controller import Mixing
from mixer.mixture.cursors import StreamShare
from mixer.mixture.plan import Plan
from mixer.mixture.stream import combine
from mixer.utils.arrays import BoolArray, Int64Array

_MOST_EXAMPLES = 100  # attempts to load a padding sample


class MixingLoader:
    """Yields one rank's steps, one epoch per iteration.

    Each step is planned when it is requested, so it follows the latest weights.

    Args:
        mixing: Mixture controller.
        datasets: Datasets of the streams, in order.
        collator: Collates a list of samples.
        rank: This rank.
        world_size: Number of ranks.
        micro_batches: Micro-batch options.
        stack_columns: Collates columns in place of the collator, where samples are loaded by column; `None` always
            loads individual samples.
        seed: Seed of the run: samples and collators that draw random numbers draw the same ones in every run, with any
            number of workers.
        workers: Worker options.
        pin_memory: Whether to copy micro-batches into pinned memory.
        feed: Rows of the iterable streams.
        keeps_samples: Whether steps keep their samples, so that `resplit` can split them again.
        specifics: Stream-specific collators and heads, by stream id.
        skipping: Treatment of samples that cannot be loaded.
    """

    def __init__(
        self,
        mixing: Mixing,
        datasets: Sequence[Any],
        collator: Collator,
        rank: int = 0,
        world_size: int = 1,
        micro_batches: MicroBatchOptions | None = None,
        stack_columns: Callable[[Columns], Any] | None = None,
        seed: int = 0,
        workers: WorkerOptions | None = None,
        pin_memory: bool = False,
        feed: Feed | None = None,
        keeps_samples: bool = False,
        specifics: Mapping[int, StreamSpecifics] | None = None,
        skipping: Skipping | None = None,
    ):
        self.mixing = mixing
        self.dataset = combine(mixing.planner.streams, datasets)
        self.by_stream = False  # whether each micro-batch holds one stream
        self.in_turns = False  # whether only those of a few streams do, which change from step to step
        self.keeps_positions = False
        self.is_looked_at = False  # whether steps are inspected only, neither trained on nor observed
        keys = [stream.order_key(seed) for stream in mixing.planner.streams]
        are_random = [stream.is_random for stream in mixing.planner.streams]
        self._skipping = skipping or Skipping()
        self._reader = StreamReader(mixing.names, datasets, keys, are_random, self._skipping.stream_ids)
        self._reads_columns = stack_columns is not None and self._reader.has_columns
        self._in_place = {number for number, dataset in enumerate(datasets) if getattr(dataset, "is_in_place", False)}
        self._feed, self.keeps_samples = feed, keeps_samples
        self._collation = Collation(collator, stack_columns, seed, rank, pin_memory, specifics or {}, mixing.names)
        self._rank, self._world_size, self._seed = rank, world_size, seed
        self._batcher = MicroBatcher(lambda: mixing.planner, micro_batches or MicroBatchOptions(), rank, world_size)
        self._workers = workers or WorkerOptions()
        self._prefetcher = self._new_prefetcher() if self._workers.num_workers else None

    def __len__(self) -> int:
        return self.mixing.clock.steps_per_epoch

    def __iter__(self) -> Iterator[StepBatch]:
        try:
            epoch = self.mixing.clock.num_epochs_done
            while self.mixing.clock.num_epochs_done == epoch:
                batch = self.next_batch()
                if batch is None:
                    return
                yield batch
                if self.is_looked_at:
                    self.mixing.pass_over(batch.plan)
        finally:
            if self.is_looked_at or not self._workers.persistent_workers:
                self.stop()

    @property
    def total_batch_size(self) -> int:
        """Current samples per step over all ranks, as for a loader prepared by Accelerate."""
        return self.mixing.clock.batch_size

    @property
    def hits_and_misses(self) -> tuple[int, int]:
        """Prefetched and not prefetched samples of the last step."""
        return (0, 0) if self._prefetcher is None else (self._prefetcher.hits, self._prefetcher.misses)

    @property
    def is_talkative(self) -> bool:
        """Whether loading involves collectives, which no rank may omit."""
        return self._feed is not None or self._batcher.options.max_tokens is not None

    @property
    def takes_turns(self) -> bool:
        """Whether `in_turns` can be set."""
        return self._batcher.takes_turns

    @property
    def configured_cap(self) -> MicroBatchCap:
        """Micro-batch cap set by the options."""
        options = self._batcher.options
        return MicroBatchCap(options.max_samples, options.max_tokens)

    @property
    def cap(self) -> MicroBatchCap:
        """Current micro-batch cap; must be equal on all ranks."""
        return self._batcher.cap

    @cap.setter
    def cap(self, cap: MicroBatchCap) -> None:
        self._batcher.cap = cap

    def compare_columns(
        self, stream_ids: Iterable[int], taken: Collection[str] | None = None, removed: Collection[str] = ()
    ) -> None:
        """Checks before collation that samples have equal columns, for collators that would silently drop some.

        Args:
            stream_ids: Streams to check; -1 for mixed micro-batches.
            taken: Columns that are not removed; `None` for all.
            removed: Columns already removed from datasets, for errors.
        """
        self._collation.compared = frozenset(stream_ids)
        self._collation.taken = None if taken is None else frozenset(taken)
        self._collation.removed = frozenset(removed)

    def stop(self) -> None:
        """Stops the workers; they restart with the next samples."""
        if self._prefetcher is not None:
            self._prefetcher.stop()
        if self._feed is not None:
            self._feed.stop()

    def next_batch(self) -> StepBatch | None:
        """Plans, loads and collates the next step.

        Returns:
            The step, or `None` if the streams are exhausted.

        Raises:
            SampleError: If a sample cannot be loaded.
        """
        with self._batcher.share_errors():
            if self._feed is not None:
                self._feed.prepare(-(-self.mixing.most_of_a_stream // self._world_size))
            plan = self.mixing.next_plan()
        if plan is None:
            self._batcher.join_without_samples()
            return None
        return self.load(plan)

    def load(self, plan: Plan) -> StepBatch:
        """Loads and collates this rank's share of a plan.

        Args:
            plan: Plan of the step.

        Returns:
            Micro-batches of one stream each if the plan weights losses or `by_stream` is set, else mixed ones.

        Raises:
            SampleError: If a sample cannot be loaded.
        """
        share = self._batcher.share(plan, self._is_by_stream(plan))
        return self._split(plan, share, lambda: self._load(plan, share))

    def resplit(self, batch: StepBatch) -> StepBatch:
        """Splits a step that kept its samples into new micro-batches under the current cap."""
        assert batch.samples is not None, "the loader must keep samples"  # noqa: S101
        share, loaded = batch.samples
        return self._split(batch.plan, share, lambda: loaded)

    def few_samples(self, batch: StepBatch, stream_id: int | None, most: int = 8) -> tuple[Any, int] | None:
        """Collates a few of this rank's samples of a step, regardless of its micro-batches.

        Args:
            batch: Step that kept its samples.
            stream_id: Stream of the samples; `None` for any.
            most: Maximum samples.

        Returns:
            Collated inputs and number of samples; `None` if there are fewer than two.
        """
        if batch.samples is None:
            return None
        share, loaded = batch.samples
        stream_ids, broken = ids_of(share), list(self._find_broken(ids_of(share), loaded))
        fits = ~np.isin(np.arange(len(stream_ids)), broken)
        places = np.flatnonzero(fits if stream_id is None else fits & (stream_ids == stream_id))
        if len(places) < 2:
            return None
        places = places[np.linspace(0, len(places) - 1, min(most, len(places))).astype(np.int64)]
        inputs = self._collation.collate(loaded, places, batch.plan.step, 0, -1 if stream_id is None else stream_id)
        return inputs, len(places)

    def _split(self, plan: Plan, share: list[StreamShare], load: Callable[[], Loaded]) -> StepBatch:
        stream_ids, indices = ids_of(share), indices_of(share)
        with self._batcher.share_errors():
            loaded = load()
            broken = self._find_broken(stream_ids, loaded)
            order, slices = self._batcher.split(plan, share, stream_ids, loaded, self._is_by_stream(plan))
        slices = self._batcher.padded_to_other_ranks(slices, len(stream_ids))
        positions = positions_of(share) if self.keeps_positions else None
        micro_batches = []
        for number, cut in enumerate(slices):
            place = slice(cut.start, cut.stop)
            selection = place if order is None else order[place]
            if broken:
                selection = _without(selection, broken, len(stream_ids))
            ids = stream_ids[selection]
            if len(ids):
                with naming_rows(self.mixing.planner.streams, ids, indices[selection]):
                    inputs = self._collation.collate(loaded, selection, plan.step, number, cut.stream_id)
                own = None if positions is None else positions[selection]
                micro_batches.append(MicroBatch(inputs, ids, False, own, indices[selection]))
            else:
                micro_batches.append(self._padding(plan, cut, number))
        left_out = tuple((int(stream_ids[place]), sample) for place, sample in broken.items())
        return StepBatch(plan, tuple(micro_batches), (share, loaded) if self.keeps_samples else None, left_out)

    def _find_broken(self, stream_ids: Int64Array, loaded: Loaded) -> dict[int, BrokenSample]:
        """Returns broken samples to skip, by place; raises for streams that may not skip any."""
        if not self._skipping and self._prefetcher is None:  # the reader has raised already
            return {}
        broken = loaded.broken()
        for place, sample in broken.items():
            if int(stream_ids[place]) not in self._skipping.stream_ids:
                raise SampleError(sample.message)
        return broken

    def forecast(self) -> Iterator[Plan]:
        """Plans the following steps; see `Mixing.forecast`."""
        return self.mixing.forecast()

    def share(self, plan: Plan) -> list[StreamShare]:
        """Returns this rank's samples of a plan that workers can load; see `MicroBatcher.share`."""
        return self._for_workers(self._batcher.share(plan, self._is_by_stream(plan)))

    def read(self, share: Sequence[StreamShare]) -> Samples:
        """Loads samples in this process; see `StreamReader.read`."""
        columns = self._read_columns(share)
        return Samples(None, self._reader.read(share)) if columns is None else Samples(dict(columns))

    def read_samples(self, share: Sequence[StreamShare]) -> list[Any]:
        """Loads individual samples in this process, skipping none; see `StreamReader.read`."""
        samples = self._reader.read(share)
        for sample in samples:
            if isinstance(sample, BrokenSample):
                raise SampleError(sample.message)
        return samples

    def _read_columns(self, share: Sequence[StreamShare]) -> Columns | None:
        """Loads samples by column; `None` if they must be loaded individually."""
        if not (self._reads_columns and share):
            return None
        try:
            return self._reader.read_columns(share)
        except SampleError:
            if not self._skipping:
                raise
            return None

    def _is_by_stream(self, plan: Plan) -> bool | BoolArray:
        if self.by_stream or plan.loss_weights is not None:
            return True
        measured = self.measured(plan)
        return False if measured is None else measured

    def measured(self, plan: Plan) -> BoolArray | None:
        """Returns the streams whose losses a step shows, bool `[num_streams]`; `None` for all."""
        if not self.in_turns or self.by_stream or plan.loss_weights is not None:
            return None
        return streams_in_turn(plan)

    def _for_workers(self, share: list[StreamShare]) -> list[StreamShare]:
        if self._feed is None and not self._in_place:
            return share
        streams = self.mixing.planner.streams
        return [p for p in share if p.stream_id not in self._in_place and not streams[p.stream_id].is_iterable]

    def _load(self, plan: Plan, share: list[StreamShare]) -> Loaded:
        if self._feed is not None or (self._prefetcher is not None and self._in_place):
            return self._load_in_parts(plan, share)
        if self._prefetcher is not None:
            return Loaded(rows=self._prefetcher.take(plan, share, self._last_step(plan)))
        columns = self._read_columns(share)
        return Loaded(samples=self._reader.read(share)) if columns is None else Loaded(columns=columns)

    def _load_in_parts(self, plan: Plan, share: list[StreamShare]) -> Loaded:
        """Combines samples from workers, rows of iterable streams, and samples that only this process can read."""
        indexed = self._for_workers(share)
        if self._prefetcher is not None:
            loaded = iter(self._prefetcher.take(plan, indexed, self._last_step(plan)))
        else:
            samples = self.read(indexed)
            loaded = iter([(samples, number) for number in range(sum(len(part.indices) for part in indexed))])
        rows: list[Row] = []
        own = {} if self._feed is None else dict(self._feed.take(plan, share))
        own |= {part.stream_id: self._reader.read([part]) for part in share if part.stream_id in self._in_place}
        for part in share:
            stream = Samples(None, own[part.stream_id]) if part.stream_id in own else None
            rows += [next(loaded) if stream is None else (stream, number) for number in range(len(part.indices))]
        return Loaded(rows=rows)

    def _padding(self, plan: Plan, cut: MicroBatchSlice, number: int) -> MicroBatch:
        """Repeats one sample of the plan: all ranks must run equally many forward and backward passes."""
        stream_id = cut.stream_id if cut.stream_id >= 0 else plan.first_stream
        if self._feed is not None and self.mixing.planner.streams[stream_id].is_iterable:
            stream_id, row = self._feed.example()
            loaded = Loaded(samples=[row])
        else:
            loaded = Loaded(rows=[self._example(plan, stream_id)])
        inputs = self._collation.collate(loaded, slice(0, 1), plan.step, number, stream_id)
        return MicroBatch(inputs, np.array([stream_id]), True)

    def _example(self, plan: Plan, stream_id: int) -> Row:
        """Loads the first sample of a plan's stream that can be loaded."""
        for number in range(_MOST_EXAMPLES):  # beyond the plan, too: the sample does not count
            row = self.read([self.mixing.planner.example(plan, stream_id, number)]), 0
            if not Loaded(rows=[row]).broken():
                return row
        raise SampleError(
            f"Stream {self.mixing.names[stream_id]!r}: {_MOST_EXAMPLES} consecutive samples, from step {plan.step} "
            "on, could not be loaded, so that this rank has no padding sample."
        )

    def _last_step(self, plan: Plan) -> int:
        """Returns the last step to prefetch for: workers that stop with the epoch load nothing beyond it."""
        clock = self.mixing.clock
        if self._workers.persistent_workers:
            return clock.max_steps
        return plan.step + clock.steps_left_in_epoch - 1

    def _new_prefetcher(self) -> Prefetcher:
        workers = Workers(self._reader, self._reads_columns, self._workers, self._seed)
        job_size = self._workers.job_size or self._batcher.options.max_samples
        return Prefetcher(workers, self, job_size, has_others=self._world_size > 1)


def _without(selection: Selection, broken: Mapping[int, BrokenSample], num_samples: int) -> Int64Array:
    places = np.arange(num_samples)[selection]
    return places[~np.isin(places, list(broken))]
