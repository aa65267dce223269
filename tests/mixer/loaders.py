"""Loaders of mixtures that change, and what they gave, for the tests of loading ahead."""

import random
from collections import UserDict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from mixer import Decision, Mixture, Observation, Policy, Stream, Uniform
from mixer.loading.batching import MicroBatchOptions, Splitting
from mixer.loading.collate import Collation
from mixer.loading.loaded_step import StepBatch
from mixer.loading.loader import MixingLoader
from mixer.loading.workers import WorkerOptions
from mixer.mixture.clock import Budget, Clock
from mixer.mixture.controller import Mixing
from mixer.mixture.planner import Planner


def quick_and_full(quick: Sequence[Any], full: Sequence[Any]) -> list[Any]:
    """Cases to parametrize with; the latter are left to the whole suite."""
    cases = [case if isinstance(case, tuple) else (case,) for case in full]
    return [*quick, *(pytest.param(*case, marks=pytest.mark.full) for case in cases)]


class Noisy:
    """Rows of different lengths that say where they come from, with numbers of all three generators."""

    def __init__(self, stream_id: int, length: int):
        self.stream_id, self.length = stream_id, length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> dict[str, Any]:
        noise = [random.random(), np.random.random(), torch.rand(()).item()]  # noqa: NPY002
        return {"x": torch.tensor([self.stream_id, index]), "noise": torch.tensor(noise), "row": list(range(index % 3))}


class Numbers(Noisy):
    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"x": torch.tensor([self.stream_id, index])}


class Columns(Numbers):
    """Rows that can be read as columns, of one name."""

    name = "x"

    def read_columns(self, indices: np.ndarray) -> dict[str, torch.Tensor]:
        return {self.name: torch.stack([self[index]["x"] for index in indices.tolist()])}


class Failing(Noisy):
    def __getitem__(self, index: int) -> dict[str, Any]:
        if index == 3:
            raise OSError("disk on fire")
        return super().__getitem__(index)


class Unpicklable(Noisy):
    def __getitem__(self, index: int) -> dict[str, Any]:
        return {**super().__getitem__(index), "f": (lambda: 0) if index == 3 else None}


class Wandering(Policy):
    """Weights that change with every step, some of them 0; the same on every rank."""

    def __init__(self, seed: int = 0):
        super().__init__()
        self.seed = seed

    def start(self, mixture: Mixture) -> Decision:
        return self.decision(0, len(mixture.names))

    def update(self, observation: Observation) -> Decision:
        return self.decision(observation.step, len(observation.weights))

    def decision(self, step: int, num_streams: int) -> Decision:
        generator = np.random.default_rng([self.seed, step])
        weights = generator.dirichlet(np.full(num_streams, 0.5)) * (generator.random(num_streams) < 0.7)
        return Decision(weights if weights.sum() > 0 else np.ones(num_streams))


def masking_collator(samples: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    """A collator that draws, as those of masked language models do."""
    batch = {name: torch.stack([sample[name] for sample in samples]) for name in ("x", "noise")}
    return {**batch, "mask": torch.rand(len(samples)), "other": torch.tensor([random.random(), np.random.random()])}  # noqa: NPY002


def stacking_collator(samples: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    return {"x": torch.stack([sample["x"] for sample in samples])}


def make_loader(
    num_workers: int = 0,
    rank: int = 0,
    world_size: int = 1,
    datasets: Any = None,
    policy: Policy | None = None,
    batch_size: int = 9,
    num_epochs: float = 4,
    micro_batch_size: int = 2,
    collator: Any = masking_collator,
    prefetch_factor: int = 2,
    stack_columns: Any = None,
    stacks_lists: bool = False,
    **options: Any,
) -> MixingLoader:
    datasets = [Noisy(k, n) for k, n in enumerate((20, 11, 6))] if datasets is None else datasets
    streams = [Stream(f"s{k}", dataset) for k, dataset in enumerate(datasets)]
    clock = Clock(batch_size, sum(map(len, datasets)), Budget(epochs=num_epochs))
    mixing = Mixing(Planner(streams, seed=0), policy or Uniform(), clock)
    workers = WorkerOptions(num_workers, prefetch_factor, **options)
    collation = Collation(collator, mixing.names, stack_columns, seed=3, rank=rank)
    micro_batches = MicroBatchOptions(micro_batch_size)
    return MixingLoader(mixing, datasets, collation, rank, world_size, micro_batches, stacks_lists, workers)


def split(loader: MixingLoader, **changes: Any) -> None:
    """Makes a loader split its next steps in another way."""
    loader._splitting = lambda: replace(Splitting(loader.configured_cap), **changes)


def batches_of(loader: MixingLoader, limit: int = 10_000) -> Iterator[StepBatch]:
    """Goes through the run, epoch after epoch."""
    mixing, count = loader.mixing, 0
    while mixing.clock.progress < 1.0 and count < limit:
        for batch in loader:
            yield batch
            count += 1
            mixing.observe(batch.plan, np.zeros(len(mixing.names), dtype=np.int64))
            if mixing.clock.progress >= 1.0 or count >= limit:
                break


def contents(batch: StepBatch) -> list[Any]:
    """All that a step consists of, to be compared to the bit."""
    micro_batches = [
        ({name: values.tolist() for name, values in micro.inputs.items()}, micro.stream_ids.tolist(), micro.is_padding)
        for micro in batch.micro_batches
    ]
    return [batch.plan.fingerprint(), batch.plan.staleness, *micro_batches]


class InProcess:
    """Stands in for a DataLoader with workers: it takes jobs off the line as one does, but loads them here."""

    worker = SimpleNamespace(id=0)

    def __init__(self, dataset: Any, sampler: Any, num_workers: int, prefetch_factor: int, **options: Any):
        self.dataset, self.sampler, self.num_jobs = dataset, sampler, num_workers * prefetch_factor

    def __iter__(self) -> Iterator[Any]:
        places = iter(self.sampler)
        shares = [next(places) for _ in range(self.num_jobs)]

        def load() -> Iterator[Any]:
            while True:
                share = shares.pop(0)
                shares.append(next(places))
                yield self.dataset[share]

        return load()


def assert_same(one: Any, other: Any) -> None:
    """Holds samples to each other to the type and the bit."""
    assert type(one) is type(other)
    if isinstance(one, torch.Tensor | np.ndarray | np.generic):
        assert (one.dtype, one.shape, one.tolist()) == (other.dtype, other.shape, other.tolist())
    elif isinstance(one, dict | UserDict):
        assert one.keys() == other.keys()
        assert_same(list(one.values()), [other[name] for name in one])
    elif isinstance(one, list | tuple):
        for pair in zip(one, other, strict=True):
            assert_same(*pair)
    else:
        assert one == other
