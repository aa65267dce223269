"""Iterable streams in a mixture, on ranks that are threads here."""

import itertools
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import datasets
import numpy as np
from torch.utils.data import IterableDataset

from mixer import Stream, Uniform
from mixer.loading.batching import MicroBatchOptions
from mixer.loading.collate import Collation
from mixer.loading.iterable.feed import Feed
from mixer.loading.iterable.source import RowSource
from mixer.loading.loaded_step import StepBatch
from mixer.loading.loader import MixingLoader
from mixer.loading.reader import SampleError
from mixer.mixture.clock import Budget, Clock
from mixer.mixture.controller import Mixing
from mixer.mixture.planner import Planner
from mixer.utils.files import read_json, write_json


class Rows(IterableDataset[dict[str, int]]):
    def __init__(self, length: int, stream: int = 0, fails_at: int = -1):
        self.length, self.stream, self.fails_at = length, stream, fails_at

    def __iter__(self) -> Iterator[dict[str, int]]:
        for number in range(self.length):
            if number == self.fails_at:
                raise OSError("gone")
            yield {"stream": self.stream, "row": number}


def shards(sizes: list[int]) -> datasets.IterableDataset:
    """A streamed data set of one shard a size: with as many ranks each has one."""

    def rows(shards: list[tuple[int, int]]) -> Iterator[dict[str, int]]:
        for shard, size in shards:
            for number in range(size):
                yield {"stream": 0, "row": 1000 * shard + number}

    return datasets.IterableDataset.from_generator(rows, gen_kwargs={"shards": list(enumerate(sizes))})


def places(length: int, stream: int) -> list[dict[str, int]]:
    return [{"stream": stream, "row": number} for number in range(length)]


class Rendezvous:
    """Brings threads together that stand for ranks."""

    def __init__(self, world_size: int):
        self._barrier = threading.Barrier(world_size, timeout=10)
        self._parts: dict[str, Any] = {}  # by name of the thread, which is that of its rank

    def _gather(self, part: Any) -> list[Any]:
        self._parts[threading.current_thread().name] = part
        self._barrier.wait()
        together = [self._parts[name] for name in sorted(self._parts)]
        self._barrier.wait()
        return together

    def gather_bytes(self, content: bytes) -> list[bytes]:
        return self._gather(content)

    def all_reduce_min(self, numbers: np.ndarray) -> np.ndarray:
        return np.min(self._gather(numbers), axis=0)

    def all_reduce_sum(self, numbers: np.ndarray) -> np.ndarray:
        return np.sum(self._gather(numbers), axis=0)

    def leave(self) -> None:
        """Leaves no rank waiting for one that failed."""
        self._barrier.abort()


def make_loader(
    streams: list[Stream],
    rank: int,
    world_size: int,
    rendezvous: Rendezvous,
    policy: Any = None,
    batch_size: int = 6,
    epoch_size: int | None = 60,
) -> MixingLoader:
    budget = Budget(epochs=50) if epoch_size else Budget(steps=500)
    clock = Clock(batch_size, epoch_size, budget, has_passes=epoch_size is None and len(streams) == 1)
    mixing = Mixing(Planner(streams, seed=1), policy or Uniform(), clock)
    sources = {
        number: RowSource(stream.name, stream.dataset, number, rank, world_size)
        for number, stream in enumerate(streams)
        if stream.is_iterable
    }

    def collate(samples: list[dict[str, int]]) -> dict[str, Any]:
        return {name: np.array([sample[name] for sample in samples]) for name in samples[0]}

    feed = Feed(sources, mixing, rendezvous, world_size)
    parts = [stream.dataset for stream in streams]
    return MixingLoader(
        mixing, parts, Collation(collate, mixing.names), rank, world_size, MicroBatchOptions(3), feed=feed
    )


def outcomes_of(
    make_streams: Callable[[], list[Stream]],
    world_size: int,
    num_steps: int,
    save: Path | None = None,
    resume: Path | None = None,
    weigh: Callable[[int], list[float]] | None = None,
    **options: Any,
) -> list[Any]:
    """Trains on all ranks at once; gives each one's loader and steps, or its error."""
    rendezvous, results = Rendezvous(world_size), {}

    def steps(loader: MixingLoader) -> Iterator[StepBatch]:
        mixing, none = loader.mixing, np.zeros(len(loader.mixing.names), dtype=np.int64)
        while not mixing.is_exhausted:
            if weigh is not None:
                mixing.set_weights(weigh(mixing.clock.step))
            if (batch := loader.next_batch()) is None:
                return
            mixing.observe(batch.plan, none)
            yield batch

    def train(rank: int) -> None:
        try:
            loader = make_loader(make_streams(), rank, world_size, rendezvous, **options)
            if resume is not None:
                loader.mixing.load_state_dict(read_json(resume / f"mixing-{rank}.json"))
                loader._feed.load(resume, rank)
            results[rank] = (loader, list(itertools.islice(steps(loader), num_steps)))
            if save is not None:
                write_json(save / f"mixing-{rank}.json", loader.mixing.state_dict())
                loader._feed.save(save, rank)
        except Exception as error:
            results[rank] = error
            if isinstance(error, SampleError):
                rendezvous.leave()

    threads = [threading.Thread(target=train, args=(rank,), name=str(rank)) for rank in range(world_size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
    return [results[rank] for rank in range(world_size)]


def run_ranks(*args: Any, **options: Any) -> list[tuple[MixingLoader, list[StepBatch]]]:
    """As `outcomes_of`, but an error of any rank is raised."""
    outcomes = outcomes_of(*args, **options)
    errors = [outcome for outcome in outcomes if isinstance(outcome, Exception)]
    for error in sorted(errors, key=lambda error: isinstance(error, threading.BrokenBarrierError)):
        raise error  # that of a rank itself rather than that of one that waited for it
    return outcomes


def rows_of(batches: list[StepBatch], stream: int = 0) -> list[int]:
    return [
        int(row)
        for batch in batches
        for micro in batch.micro_batches
        if not micro.is_padding
        for number, row in zip(micro.inputs["stream"], micro.inputs["row"], strict=True)
        if number == stream
    ]
