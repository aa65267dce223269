"""Loads the samples of a plan, prefetched by workers if there are any, and collates one rank's micro-batches."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from mixer.loading.batching import (
    MicroBatchCap,
    MicroBatcher,
    MicroBatchOptions,
    MicroBatchSlice,
    Splitting,
    split_by_cap,
)
from mixer.loading.collate import Collation, Loaded, Row, Samples, Selection
from mixer.loading.epoch_sampler import EpochSampler
from mixer.loading.errors import note_rows
from mixer.loading.iterable.feed import Feed
from mixer.loading.loaded_step import MicroBatch, StepBatch
from mixer.loading.prefetch import Prefetcher
from mixer.loading.reader import SampleError, StreamReader
from mixer.loading.workers import WorkerOptions, Workers
from mixer.mixture.bad_samples import BrokenSample, Skipping
from mixer.mixture.controller import Mixing
from mixer.mixture.step_plan import StepPlan, StreamShare, ids_of, positions_of
from mixer.mixture.streams import combine
from mixer.utils.arrays import BoolArray, Int64Array

_Rows = tuple[list[StreamShare], Int64Array]  # a rank's samples of a step, and the stream of each
_MOST_EXAMPLES = 100  # attempts to load a padding sample


class MixingLoader:
    """Yields one rank's steps, one epoch per iteration.

    Each step is planned when it is requested, so it follows the latest weights.

    Args:
        mixing: Mixture controller.
        datasets: Datasets of the streams, in order.
        collation: How micro-batches are collated. With `stack_columns`, samples are loaded by column where they can be.
        rank: This rank.
        world_size: Number of ranks.
        micro_batches: Micro-batch options.
        stacks_lists: Whether columns that are stacked are the collator's tensors of Python's numbers and lists, too.
        workers: Worker options.
        feed: Rows of the iterable streams.
        skipping: Treatment of samples that cannot be loaded.
        splitting: Returns how the next step is split; `None` splits by the options of micro-batches.
        is_preview: Whether steps are inspected only, neither trained on nor observed.
    """

    def __init__(
        self,
        mixing: Mixing,
        datasets: Sequence[Any],
        collation: Collation,
        rank: int = 0,
        world_size: int = 1,
        micro_batches: MicroBatchOptions | None = None,
        stacks_lists: bool = False,
        workers: WorkerOptions | None = None,
        feed: Feed | None = None,
        skipping: Skipping | None = None,
        splitting: Callable[[], Splitting] | None = None,
        is_preview: bool = False,
    ):
        self.mixing = mixing
        self.dataset = combine(mixing.planner.streams, datasets)
        self._is_preview = is_preview
        keys = [stream.order_key(collation.seed) for stream in mixing.planner.streams]
        are_random = [stream.is_random for stream in mixing.planner.streams]
        self._skipping = skipping or Skipping()
        self._reader = StreamReader(mixing.names, datasets, keys, are_random, self._skipping.stream_ids)
        self._reads_columns = collation.stack_columns is not None and self._reader.has_columns
        self._stacks_arrow = collation.stack_columns is not None and self._reader.is_arrow
        self._in_place = {number for number, dataset in enumerate(datasets) if getattr(dataset, "is_in_place", False)}
        self._feed, self._collation = feed, collation
        self._rank, self._world_size = rank, world_size
        options = micro_batches or MicroBatchOptions()
        self._batcher, self._lengths = MicroBatcher(options, rank, world_size), options.lengths
        self.configured_cap = MicroBatchCap(options.max_samples, options.max_tokens)
        self._splitting = splitting or itertools.repeat(Splitting(self.configured_cap)).__next__
        self.allows_round_robin = options.lengths is None  # whether steps can be split by `Splitting.round_robin`
        # Whether loading involves collectives, which no rank may omit.
        self.uses_collectives = feed is not None or options.max_tokens is not None
        self._workers = workers or WorkerOptions()
        # Others see samples, or put them beside samples that are lists.
        has_others = feed is not None or bool(collation.specifics) or self._workers.num_workers > 0
        self._stacks_lists = stacks_lists and not has_others
        self._prefetcher: Prefetcher | None = None
        if self._workers.num_workers:
            job_size = self._workers.job_size or options.max_samples
            processes = Workers(self._reader, self._reads_columns, self._workers, collation.seed)
            self._prefetcher = Prefetcher(processes, self, job_size, has_others=world_size > 1)

    def __len__(self) -> int:
        return self.mixing.clock.steps_per_epoch

    def __iter__(self) -> Iterator[StepBatch]:
        try:
            clock = self.mixing.clock
            epoch = clock.num_epochs_done
            while clock.num_epochs_done == epoch and (clock.has_length or clock.progress < 1.0):
                batch = self.next_batch()
                if batch is None:
                    return
                yield batch
                if self._is_preview:
                    self.mixing.count_untrained(batch.plan)
        finally:
            if self._is_preview or not self._workers.persistent_workers:
                self.stop()

    @property
    def total_batch_size(self) -> int:
        """Current samples per step over all ranks, as for a loader prepared by Accelerate."""
        return self.mixing.clock.batch_size

    @property
    def batch_size(self) -> int:
        """Current samples per step on this rank."""
        return -(-self.total_batch_size // self._world_size)

    @property
    def sampler(self) -> EpochSampler | None:
        """The rows of `dataset` that an epoch gives this rank; `None` if some streams have no index."""
        if any(stream.is_iterable or stream.is_memory for stream in self.mixing.planner.streams):
            return None
        return EpochSampler(self.mixing, self._rank, self._world_size)

    @property
    def hits_and_misses(self) -> tuple[int, int]:
        """Prefetched and not prefetched samples of the last step."""
        return (0, 0) if self._prefetcher is None else (self._prefetcher.hits, self._prefetcher.misses)

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
        try:
            if self._feed is not None:
                self._feed.prepare(-(-self.mixing.most_of_a_stream // self._world_size))
            plan = self.mixing.next_plan()
        except Exception:
            self._batcher.join_without_samples()
            raise
        if plan is None:
            self._batcher.join_without_samples()
            return None
        return self.load(plan)

    def load(self, plan: StepPlan, splitting: Splitting | None = None) -> StepBatch:
        """Loads and collates this rank's share of a plan.

        Args:
            plan: Plan of the step.
            splitting: How it is split into micro-batches; `None` for as the next step.

        Raises:
            SampleError: If a sample cannot be loaded.
        """
        splitting = splitting or self._splitting()
        separates = splitting.separates(plan)
        return self._split(plan, self._batcher.share(self.mixing.planner, plan, separates), splitting, separates)

    def resplit(self, batch: StepBatch, splitting: Splitting) -> StepBatch:
        """Splits a step that kept its samples into other micro-batches."""
        assert batch.samples is not None, "the step must have kept its samples"  # noqa: S101
        share, loaded = batch.samples
        return self._split(batch.plan, share, splitting, splitting.separates(batch.plan), loaded)

    def _split(
        self,
        plan: StepPlan,
        share: list[StreamShare],
        splitting: Splitting,
        separates: bool | BoolArray,
        loaded: Loaded | None = None,
    ) -> StepBatch:
        stream_ids = ids_of(share)
        try:
            loaded = self._load(plan, share) if loaded is None else loaded
            broken = self._find_broken(stream_ids, loaded)
            order, slices = self._batcher.split(plan, share, stream_ids, loaded, separates, splitting.cap)
        except Exception:
            self._batcher.join_without_samples()
            raise
        slices = self._batcher.padded_to_other_ranks(slices, len(stream_ids))
        micro_batches = []
        for number, cut in enumerate(slices):
            selection: Selection = slice(cut.start, cut.stop)
            if order is not None:
                selection = order[selection]
            if broken:
                selection = _without(np.arange(len(stream_ids))[selection], broken)
            micro_batches.append(self._micro_batch(plan, loaded, selection, cut, number, (share, stream_ids)))
        left_out: tuple[tuple[int, BrokenSample, int], ...] = ()
        if broken:
            positions = positions_of(share)
            left_out = tuple((int(stream_ids[k]), sample, int(positions[k])) for k, sample in broken.items())
        return StepBatch(plan, tuple(micro_batches), (share, loaded) if splitting.keeps_samples else None, left_out)

    def _micro_batch(
        self, plan: StepPlan, loaded: Loaded, selection: Selection, cut: MicroBatchSlice, number: int, rows: _Rows
    ) -> MicroBatch:
        """Collates the samples of a micro-batch, which an error names; without any it is padding."""
        share, stream_ids = rows[0], rows[1][selection]
        if not len(stream_ids):
            return self._padding(plan, cut, number)
        try:
            inputs = self._collation.collate(loaded, selection, plan.step, number, cut.stream_id)
        except Exception as error:
            note_rows(error, self.mixing.planner.streams, MicroBatch(None, stream_ids, False, share, selection))
            raise
        return MicroBatch(inputs, stream_ids, False, share, selection)

    def _find_broken(self, stream_ids: Int64Array, loaded: Loaded) -> dict[int, BrokenSample]:
        """Returns broken samples to skip, by place; raises for streams that may not skip any."""
        if not self._skipping and self._prefetcher is None:  # the reader has raised already
            return {}
        broken = loaded.broken()
        for place, sample in broken.items():
            if int(stream_ids[place]) not in self._skipping.stream_ids:
                raise SampleError(sample.message)
        return broken

    def share(self, plan: StepPlan) -> list[StreamShare]:
        """Returns this rank's samples of a plan that workers can load; see `MicroBatcher.share`."""
        return self._for_workers(self._batcher.share(self.mixing.planner, plan, self._splitting().separates(plan)))

    def read(self, share: Sequence[StreamShare]) -> Samples:
        """Loads samples in this process; see `StreamReader.read`."""
        if self._reads_columns and share:
            try:
                return Samples(dict(self._reader.read_columns(share)))
            except SampleError:
                if not self._skipping:
                    raise
        columns = self._reader.stack(share, self._stacks_lists) if self._stacks_arrow else None
        return Samples(None, self._reader.read(share)) if columns is None else Samples(columns)

    def read_samples(self, share: Sequence[StreamShare]) -> list[Any]:
        """Loads individual samples in this process, skipping none; see `StreamReader.read`."""
        samples = self._reader.read(share)
        for sample in samples:
            if isinstance(sample, BrokenSample):
                raise SampleError(sample.message)
        return samples

    def split_others(self, samples: Sequence[Any], cap: MicroBatchCap) -> list[slice]:
        """Splits samples of another data set into micro-batches no larger than a cap."""
        lengths = None if cap.max_tokens is None or self._lengths is None else self._lengths.of(samples)
        return split_by_cap(np.zeros(len(samples), dtype=np.int64), lengths, cap, is_by_stream=False)

    def samples(self, wanted: Mapping[int, Int64Array], splitting: Splitting) -> list[MicroBatch]:
        """Loads and collates samples of map-style streams in this process, apart from the steps; skips broken ones.

        Args:
            wanted: int64 `[num_samples]` by stream: positions in the stream.
            splitting: How they are split into micro-batches.

        Returns:
            Micro-batches, of one stream each where those of steps are.
        """
        cursors = self.mixing.planner.cursors
        look_up = {k: getattr(cursors[k], "any_rows", cursors[k].references) for k in wanted}
        share = [StreamShare(k, own, look_up[k](own)) for k, own in sorted(wanted.items()) if len(own)]
        if not share:
            return []
        loaded, ids = Loaded(self.read(share)), ids_of(share)
        places = _without(np.arange(len(ids)), self._find_broken(ids, loaded))
        cap, by_stream, step = splitting.cap, splitting.by_stream, self.mixing.clock.step
        lengths = None
        if cap.max_tokens is not None and self._lengths is not None:
            lengths = self._lengths.measure(share, loaded)[places]
        cuts = [places[part] for part in split_by_cap(ids[places], lengths, cap, by_stream)]
        return [
            MicroBatch(
                self._collation.collate(loaded, cut, step, number, int(ids[cut[0]]) if by_stream else -1),
                ids[cut],
                False,
                share,
                cut,
                is_drawn=False,
            )
            for number, cut in enumerate(cuts)
        ]

    def _for_workers(self, share: list[StreamShare]) -> list[StreamShare]:
        if self._feed is None and (self._prefetcher is None or not self._in_place):
            return share
        streams = self.mixing.planner.streams
        return [p for p in share if p.stream_id not in self._in_place and not streams[p.stream_id].is_iterable]

    def _load(self, plan: StepPlan, share: list[StreamShare]) -> Loaded:
        """Combines samples from workers, rows of iterable streams, and samples that only this process can read."""
        indexed = self._for_workers(share)
        if self._prefetcher is None and indexed is share:
            return Loaded(self.read(share))
        if self._prefetcher is not None:
            loaded = self._prefetcher.take(plan, indexed, self._last_step(plan))
        else:
            loaded = self.read(indexed).references(sum(len(part.indices) for part in indexed))
        if indexed is share:
            return Loaded(loaded)
        own = {} if self._feed is None else dict(self._feed.take(plan, share))
        own |= {part.stream_id: self._reader.read([part]) for part in share if part.stream_id in self._in_place}
        others, rows = iter(loaded), list[Row]()
        for part in share:
            count, stream = len(part.indices), own.get(part.stream_id)
            rows += itertools.islice(others, count) if stream is None else Samples(None, stream).references(count)
        return Loaded(rows)

    def _padding(self, plan: StepPlan, cut: MicroBatchSlice, number: int) -> MicroBatch:
        """Repeats one sample of the plan: all ranks must run equally many forward and backward passes."""
        stream_id = cut.stream_id if cut.stream_id >= 0 else plan.first_stream
        if self._feed is not None and self.mixing.planner.streams[stream_id].is_iterable:
            stream_id, row = self._feed.example()
            example = Samples(None, [row]), 0
        else:
            example = self._example(plan, stream_id)
        inputs = self._collation.collate(Loaded([example]), slice(0, 1), plan.step, number, stream_id)
        return MicroBatch(inputs, np.array([stream_id]), True)

    def _example(self, plan: StepPlan, stream_id: int) -> Row:
        """Loads the first sample of a plan's stream that can be loaded."""
        for number in range(_MOST_EXAMPLES):  # beyond the plan, too: the sample does not count
            row = self.read([self.mixing.planner.example(plan, stream_id, number)]), 0
            if not Loaded([row]).broken():
                return row
        raise SampleError(
            f"Stream {self.mixing.names[stream_id]!r}: {_MOST_EXAMPLES} consecutive samples, from step {plan.step} "
            "on, could not be loaded, so that this rank has no padding sample."
        )

    def _last_step(self, plan: StepPlan) -> int:
        """Returns the last step to prefetch for: workers that stop with the epoch load nothing beyond it."""
        clock, goes_on = self.mixing.clock, self._workers.persistent_workers
        return clock.max_steps if goes_on else plan.step + clock.steps_left_in_epoch - 1


def _without(places: Int64Array, broken: Iterable[int]) -> Int64Array:
    return places[~np.isin(places, list(broken))]
