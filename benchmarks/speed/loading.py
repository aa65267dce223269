"""Loading with and without worker processes, ours and a prepared DataLoader: how fast."""

import gc
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from accelerate import Accelerator
from torch.utils.data import ConcatDataset, DataLoader, Sampler
from transformers import default_data_collator

from benchmarks.common import paired_ratio, rotated, spread
from benchmarks.speed.competitors import (
    ROW_LENGTH,
    SHARES,
    Batch,
    ColumnRows,
    LazyRows,
    Rows,
    Sample,
    arrow_datasets,
    make_rows,
    new_mixing,
)
from mixer.loading.batching import MicroBatchOptions
from mixer.loading.collate import Collation
from mixer.loading.loader import MixingLoader
from mixer.loading.workers import WorkerOptions
from mixer.measurements import Loss
from mixer.mixture.step_plan import StepPlan

OURS, BY_COLUMNS, THEIRS = "mixer", "mixer, by columns", "DataLoader"
Clock = Callable[[], float]
PREFETCH_FACTOR = 2
# Batches beside those that workers may have loaded while others had their turn.
_MARGIN = 2
_SLOW_SECONDS = 0.005


class SlowRows(LazyRows):
    """Samples that take a while to load, without work for a processor.

    Args:
        num_samples: How many.
        seconds: What each takes.
    """

    def __init__(self, num_samples: int, seconds: float):
        super().__init__(num_samples)
        self._seconds = seconds

    def __getitem__(self, index: int) -> Sample:
        time.sleep(self._seconds)
        return super().__getitem__(index)


class Source(Protocol):
    """Gives batches without end."""

    num_ready: int  # batches that may lie ready when a turn begins

    def next_batch(self) -> Batch:
        """Gives the next batch."""

    def stop(self) -> None:
        """Ends its workers."""


class MixingSource:
    """Draws batches as the trainer does on one rank; see `Source`.

    Args:
        datasets: The streams' data sets.
        batch_size: Samples of a batch.
        num_workers: Number of processes that load.
        shares: Weight of each stream.
    """

    def __init__(self, datasets: Sequence[Any], batch_size: int, num_workers: int, shares: Sequence[float] = SHARES):
        self.mixing = new_mixing(datasets, shares, batch_size)
        self.staleness = 0
        self.num_ready = num_workers * PREFETCH_FACTOR
        self._loader = MixingLoader(
            self.mixing,
            datasets,
            Collation(default_data_collator, self.mixing.names, stack_columns=dict),
            micro_batches=MicroBatchOptions(batch_size),
            stacks_lists=True,
            workers=WorkerOptions(num_workers, PREFETCH_FACTOR, persistent_workers=True),
        )
        self._losses = np.ones(len(datasets))
        self._plan: StepPlan | None = None

    def next_batch(self) -> Batch:
        """Lets the policy see the last step and gives the next; see `Source.next_batch`."""
        if self._plan is not None:
            self.mixing.observe(self._plan, self._plan.counts * ROW_LENGTH, {Loss: self._losses})
        step_batch = self._loader.next_batch()
        assert step_batch is not None, "the streams have no end"
        self._plan = step_batch.plan
        self.staleness = max(self.staleness, step_batch.plan.staleness)
        batch: Batch = step_batch.micro_batches[0].inputs
        return batch

    def stop(self) -> None:
        """Ends the workers; see `Source.stop`."""
        self._loader.stop()


class PreparedSource:
    """Draws batches from the data sets in a row, shuffled together, as the Trainer does; see `Source`.

    Args:
        datasets: The data sets.
        batch_size: Samples of a batch.
        num_workers: Number of processes that load.
        sampler: What is drawn, in place of all samples shuffled.
    """

    def __init__(self, datasets: Sequence[Any], batch_size: int, num_workers: int, sampler: Sampler[Any] | None = None):
        loader: DataLoader[Any] = DataLoader(
            ConcatDataset(datasets) if len(datasets) > 1 else datasets[0],
            batch_size,
            shuffle=sampler is None,
            sampler=sampler,
            num_workers=num_workers,
            collate_fn=default_data_collator,
            prefetch_factor=PREFETCH_FACTOR if num_workers else None,
            persistent_workers=num_workers > 0,
        )
        self.num_ready = num_workers * PREFETCH_FACTOR
        self._loader = Accelerator(cpu=True).prepare(loader)
        self._batches = self._draw()

    def _draw(self) -> Iterator[Batch]:
        while True:
            yield from self._loader

    def next_batch(self) -> Batch:
        """Gives the next batch; see `Source.next_batch`."""
        return next(self._batches)

    def stop(self) -> None:
        """Ends the workers; see `Source.stop`."""
        workers = self._loader.base_dataloader._iterator
        if workers is not None:
            workers._shutdown_workers()


def rates(sources: Mapping[str, Source], rounds: int, seconds: float, clock: Clock) -> dict[str, list[float]]:
    """Has competitors draw batches in turns.

    Args:
        sources: The competitors by name; they are stopped in the end.
        rounds: Number of turns each.
        seconds: About how long a turn is.
        clock: Gives seconds; that of the thread's processor where it alone works.

    Returns:
        By name the samples per second of each turn.
    """
    measured: dict[str, list[float]] = {name: [] for name in sources}
    gc.collect()  # no old loader may be collected in a worker, whose copy of it would end those of others
    num_batches = {name: _batches_of_a_turn(source, seconds, clock) for name, source in sources.items()}
    for number in range(rounds):
        for name in rotated(list(sources), number):
            measured[name].append(_rate(sources[name], num_batches[name], clock))
    for source in sources.values():
        source.stop()
    return measured


def _batches_of_a_turn(source: Source, seconds: float, clock: Clock) -> int:
    _rate(source, 2, clock)  # starts the workers
    count, start = 0, clock()
    while clock() - start < seconds / 2:
        _draw(source, 2)
        count += 2
    return max(2 * count, 4)  # even: two workers deliver in pairs


def _rate(source: Source, num_batches: int, clock: Clock) -> float:
    # What was loaded while the others had their turns comes for nothing.
    _draw(source, source.num_ready + _MARGIN)
    start = clock()
    num_samples = _draw(source, num_batches)
    return num_samples / (clock() - start)


def _draw(source: Source, num_batches: int) -> int:
    return sum(len(source.next_batch()["input_ids"]) for _ in range(num_batches))


def throughput(kind: str, batch_size: int, num_workers: int, rounds: int, seconds: float, num_samples: int) -> Any:
    """Compares ours with the DataLoader, both with the same workers.

    Args:
        kind: `"tokens"`, rows in memory; `"lists"`, lists of such samples; `"arrow"` and `"arrow, torch"`, data sets of
            Hugging Face, for the DataLoader one with all rows; or `"slow"`, samples that cost 5 ms each.
        batch_size: Samples of a batch.
        num_workers: Number of processes that load.
        rounds: Number of turns each.
        seconds: About how long a turn is.
        num_samples: Samples of each stream.

    Returns:
        `ksamples_per_second`: the spread of each competitor; `ratio`: ours over the DataLoader, for both ways of ours.
    """
    by_name = _data_sets(kind, num_samples)
    theirs = by_name.pop(THEIRS, by_name[OURS])
    sources: dict[str, Source] = {
        **{name: MixingSource(own, batch_size, num_workers) for name, own in by_name.items()},
        THEIRS: PreparedSource(theirs, batch_size, num_workers),
    }
    works_alone = num_workers == 0 and kind != "slow"
    measured = rates(sources, rounds, seconds, clock=time.thread_time if works_alone else time.perf_counter)
    return {
        "kind": kind,
        "batch_size": batch_size,
        "num_workers": num_workers,
        "ksamples_per_second": {name: spread(np.array(values) / 1e3) for name, values in measured.items()},
        "ratio": {name: paired_ratio(values, measured[THEIRS]) for name, values in measured.items() if name != THEIRS},
    }


def _data_sets(kind: str, num_samples: int) -> dict[str, Sequence[Any]]:
    """Makes the data sets of each competitor; the DataLoader's are ours where it has none."""
    if kind == "slow":
        return {OURS: [SlowRows(num_samples, _SLOW_SECONDS) for _ in SHARES]}
    rows = make_rows(len(SHARES), num_samples)
    if kind == "tokens":
        return {OURS: [Rows(tokens) for tokens in rows], BY_COLUMNS: [ColumnRows(tokens) for tokens in rows]}
    if kind == "lists":
        return {OURS: [[{"input_ids": row, "labels": row} for row in tokens] for tokens in rows]}
    how = "torch" if kind == "arrow, torch" else None
    together = arrow_datasets([torch.cat(rows)])
    return {
        OURS: [data.with_format(how) for data in arrow_datasets(rows)],
        THEIRS: [data.with_format(how) for data in together],
    }
