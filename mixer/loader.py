"""From a plan to the micro-batches of one rank: samples are fetched, a call a stream, and collated."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from mixer.controller import Mixing
from mixer.deterministic import collates_without_randomness
from mixer.drawers import StreamShare
from mixer.micro_batches import MicroBatchSlice, split_by_stream, split_mixed
from mixer.packing import Columns, Row, Samples, stack_rows
from mixer.plan import Plan
from mixer.prefetch import Prefetcher
from mixer.random_state import seeded
from mixer.reader import StreamReader
from mixer.workers import Workers

Int64Array = NDArray[np.int64]
Collator = Callable[[list[Any]], Any]


@dataclass(frozen=True)
class MicroBatch:
    """One micro-batch of one rank.

    Args:
        inputs: What the collator gave.
        stream_ids: int64 `[num_samples]`: the stream of each sample.
        is_padding: Whether it only keeps this rank in step with the others and counts for nothing.
    """

    inputs: Any
    stream_ids: Int64Array
    is_padding: bool


@dataclass(frozen=True)
class Update:
    """All micro-batches of one rank for one optimizer step.

    The Trainer's loop asks an update for its tensors only to count tokens; it gets those of all samples, flattened.

    Args:
        plan: The plan that it carries out.
        micro_batches: The micro-batches, in order.
    """

    plan: Plan
    micro_batches: tuple[MicroBatch, ...]

    def __contains__(self, key: str) -> bool:
        return any(key in micro.inputs for micro in self.micro_batches)

    def __getitem__(self, key: str) -> torch.Tensor:
        parts = [micro.inputs[key].flatten() for micro in self.micro_batches if not micro.is_padding]
        return torch.cat(parts) if parts else torch.empty(0, dtype=torch.int64)


@dataclass(frozen=True)
class WorkerOptions:
    """How samples are loaded ahead; the words and their meaning are those of a DataLoader.

    Args:
        num_workers: Number of processes; 0 loads in the training process.
        prefetch_factor: Number of micro-batches' samples that each of them loads ahead.
        persistent_workers: Whether they live on at an epoch's end.
        worker_init_fn: What each of them does first.
    """

    num_workers: int = 0
    prefetch_factor: int = 2
    persistent_workers: bool = False
    worker_init_fn: Callable[[int], None] | None = None


class MixingLoader:
    """Gives the updates of one rank, an epoch of the run at a time.

    Every update is planned when it is asked for, so it follows the newest weights.

    Args:
        mixing: The controller of the mixture.
        datasets: The streams' data sets, in order.
        collator: Makes a micro-batch of a list of samples.
        rank: This rank.
        world_size: Number of ranks.
        max_micro_batch_size: Most samples of a micro-batch.
        stack_columns: Makes a micro-batch of columns, in place of the collator, where samples are loaded by columns;
            `None` always goes by samples.
        seed: The run's seed: samples and collators that draw random numbers draw the same in every repetition, with
            any number of workers.
        workers: How samples are loaded ahead.
        pin_memory: Whether micro-batches are put into memory from where a GPU can fetch them by itself.
    """

    def __init__(
        self,
        mixing: Mixing,
        datasets: Sequence[Any],
        collator: Collator,
        rank: int = 0,
        world_size: int = 1,
        max_micro_batch_size: int = 8,
        stack_columns: Callable[[Columns], Any] | None = None,
        seed: int = 0,
        workers: WorkerOptions | None = None,
        pin_memory: bool = False,
    ):
        self.mixing = mixing
        self.dataset = datasets[0] if len(datasets) == 1 else torch.utils.data.ConcatDataset(datasets)
        self.collator = collator
        self.by_stream = False
        keys = [stream.order_key(seed) for stream in mixing.planner.streams]
        self._reader = StreamReader(mixing.names, datasets, keys)
        self._stack_columns = stack_columns
        self._reads_columns = stack_columns is not None and self._reader.has_columns
        self._rank, self._world_size = rank, world_size
        self._max_size = max_micro_batch_size
        self._seed, self._pin_memory = seed, pin_memory
        self._collator_draws = not collates_without_randomness(collator)
        self._workers = workers or WorkerOptions()
        self._prefetcher = self._new_prefetcher() if self._workers.num_workers else None

    def __len__(self) -> int:
        return self.mixing.clock.steps_per_epoch

    def __iter__(self) -> Iterator[Update]:
        try:
            for _ in range(self.mixing.clock.step_in_epoch, len(self)):
                update = self.next_update()
                if update is None:
                    return
                yield update
        finally:
            if not self._workers.persistent_workers:
                self.stop()

    @property
    def hits_and_misses(self) -> tuple[int, int]:
        """Samples of the last update that workers had been asked for in time, and those they had not."""
        return (0, 0) if self._prefetcher is None else (self._prefetcher.hits, self._prefetcher.misses)

    def stop(self) -> None:
        """Ends the workers; they start again when samples are loaded."""
        if self._prefetcher is not None:
            self._prefetcher.stop()

    def next_update(self) -> Update | None:
        """Plans, fetches and collates the next update.

        Returns:
            The update, or `None` if the streams are exhausted.

        Raises:
            SampleError: If a sample cannot be loaded.
        """
        plan = self.mixing.next_plan()
        return None if plan is None else self.load(plan)

    def load(self, plan: Plan) -> Update:
        """Fetches and collates this rank's share of a plan.

        Args:
            plan: The plan.

        Returns:
            The micro-batches: of one stream each if the plan weighs losses or `by_stream` is set, else mixed.

        Raises:
            SampleError: If a sample cannot be loaded.
        """
        share = self.share(plan)
        own = np.array([len(part.indices) for part in share], dtype=np.int64)
        stream_ids = np.repeat(np.array([part.stream_id for part in share], dtype=np.int64), own)
        make = self._maker(plan, share)
        if self._is_by_stream(plan):
            own_counts = np.bincount(stream_ids, minlength=len(plan.counts)).tolist()
            slices = split_by_stream(plan, own_counts, self._world_size, self._max_size)
        else:
            slices = split_mixed(plan, int(own.sum()), self._world_size, self._max_size)
        return Update(
            plan,
            tuple(
                MicroBatch(make(cut.start, cut.stop, number), stream_ids[cut.start : cut.stop], False)
                if cut.start < cut.stop
                else self._padding(plan, cut, number)
                for number, cut in enumerate(slices)
            ),
        )

    def forecast(self) -> Iterator[Plan]:
        """Plans the updates after the present one; see `Mixing.forecast`."""
        return self.mixing.forecast()

    def share(self, plan: Plan) -> list[StreamShare]:
        """Looks up this rank's samples of a plan; see `DrawerLookup.share`."""
        is_balanced = not self._is_by_stream(plan)  # a stream's micro-batches are as many on every rank only at home
        return self.mixing.planner.rank_share(plan, self._rank, self._world_size, is_balanced)

    def read(self, share: Sequence[StreamShare]) -> Samples:
        """Loads samples in this process; see `StreamReader.read`."""
        if self._reads_columns and share:
            return Samples(dict(self._reader.read_columns(share)))
        return Samples(None, self._reader.read(share))

    def _is_by_stream(self, plan: Plan) -> bool:
        return self.by_stream or plan.loss_weights is not None

    def _padding(self, plan: Plan, cut: MicroBatchSlice, number: int) -> MicroBatch:
        """Repeats one sample of the plan: every rank runs as many forwards and backwards as the others."""
        stream_id = cut.stream_id if cut.stream_id >= 0 else int(np.argmax(plan.counts > 0))
        start = int(plan.starts[stream_id])
        positions = range(start, start + 1)
        indices = self.mixing.planner.drawers[stream_id].references(positions)
        row = (self.read([StreamShare(stream_id, positions, indices)]), 0)
        return MicroBatch(self._collate_rows([row], plan.step, number), np.array([stream_id]), True)

    def _maker(self, plan: Plan, share: list[StreamShare]) -> Callable[[int, int, int], Any]:
        """Loads a rank's samples and gives what makes a micro-batch of a slice of them, by its number."""
        stack = self._stack_columns
        if self._prefetcher is not None:
            rows = self._prefetcher.take(plan, share, self._last_step(plan))
            return lambda start, stop, number: self._collate_rows(rows[start:stop], plan.step, number)
        if self._reads_columns and stack is not None and share:
            columns = self._reader.read_columns(share)
            return lambda start, stop, number: self._pinned(
                stack({name: values[start:stop] for name, values in columns.items()})
            )
        samples = self._reader.read(share)
        return lambda start, stop, number: self._collate(samples[start:stop], plan.step, number)

    def _collate_rows(self, rows: list[Row], step: int, number: int) -> Any:
        columns = None if self._stack_columns is None else stack_rows(rows)
        if columns is None or self._stack_columns is None:
            return self._collate([samples[row] for samples, row in rows], step, number)
        return self._pinned(self._stack_columns(columns))

    def _collate(self, samples: list[Any], step: int, number: int) -> Any:
        if not self._collator_draws:
            return self._pinned(self.collator(samples))
        with seeded(self._seed, step, self._rank, number):
            return self._pinned(self.collator(samples))

    def _pinned(self, inputs: Any) -> Any:
        if not self._pin_memory or not isinstance(inputs, Mapping):
            return inputs
        return {name: value.pin_memory() if _is_pinnable(value) else value for name, value in inputs.items()}

    def _last_step(self, plan: Plan) -> int:
        """Gives the last update that may be looked ahead to: workers that end with the epoch load nothing beyond."""
        clock = self.mixing.clock
        if self._workers.persistent_workers:
            return clock.max_steps
        return plan.step - clock.step_in_epoch + clock.steps_per_epoch - 1

    def _new_prefetcher(self) -> Prefetcher:
        options = self._workers
        workers = Workers(
            self._reader,
            self._reads_columns,
            options.num_workers,
            options.prefetch_factor,
            options.worker_init_fn,
            self._seed,
        )
        return Prefetcher(workers, self, self._max_size, has_others=self._world_size > 1)


def _is_pinnable(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.device.type == "cpu" and value.layout is torch.strided


def batch_mapping(inputs: Any) -> Mapping[str, Any]:
    """Checks that a collator gave what a model can be called with.

    Args:
        inputs: A collated micro-batch.

    Returns:
        The same object.

    Raises:
        TypeError: If it is no mapping.
    """
    if not isinstance(inputs, Mapping):
        raise TypeError(f"The data_collator must return a mapping of model inputs, got {type(inputs).__name__}.")
    return inputs
