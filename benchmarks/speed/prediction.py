"""How often the prediction of the coming steps is right where the weights keep changing, on one rank of several."""

import time

import numpy as np
import torch
from torch.utils.data import get_worker_info
from transformers import default_data_collator

from benchmarks.speed.competitors import ROW_LENGTH, LazyRows, Sample
from mixer.loading.batching import MicroBatchOptions
from mixer.loading.loader import MixingLoader
from mixer.loading.workers import WorkerOptions
from mixer.mixture.clock import Budget, Clock
from mixer.mixture.controller import Mixing
from mixer.mixture.planner import Planner
from mixer.mixture.stream import Stream
from mixer.policies import Decision, Mixture, Observation, Policy

_NUM_WORKERS = 2
_PREFETCH_FACTOR = 2
_NUM_SAMPLES = 1_000_000
_WARM_UP_STEPS = 20


class RandomWalk(Policy):
    """Weights whose logits walk at random.

    Args:
        sigma: Standard deviation of a step of the walk.
        interval_steps: Number of steps between two decisions.
    """

    def __init__(self, sigma: float, interval_steps: int):
        super().__init__()
        self._sigma, self._interval_steps = sigma, interval_steps

    def start(self, mixture: Mixture) -> Decision:
        """Begins with equal weights; see `Policy.start`."""
        self._random = np.random.default_rng(0)
        self._logits = np.zeros(len(mixture.names))
        return Decision(np.exp(self._logits))

    def update(self, observation: Observation) -> Decision:
        """Goes a step, if one is due; see `Policy.update`."""
        if observation.step % self._interval_steps == 0:
            # Drawn back a little, so that no stream takes everything in the long run.
            self._logits = 0.98 * self._logits + self._random.normal(0.0, self._sigma, len(self._logits))
        return Decision(np.exp(self._logits))


class _CountedRows(LazyRows):
    """Samples whose loads are counted, in whichever process.

    Args:
        counts: int64 `[1 + num_workers]`, in shared memory.
    """

    def __init__(self, counts: torch.Tensor):
        super().__init__(_NUM_SAMPLES)
        self._counts = counts

    def __getitem__(self, index: int) -> Sample:
        worker = get_worker_info()
        self._counts[0 if worker is None else 1 + worker.id] += 1
        return super().__getitem__(index)


def hits(
    sigma: float, interval_steps: int, num_streams: int, batch_size: int, world_size: int, steps: int
) -> tuple[float, float]:
    """Measures how many samples of rank 0 its workers had been asked for in time, and what they loaded in vain.

    Args:
        sigma: See `RandomWalk`.
        interval_steps: See `RandomWalk`.
        num_streams: Number of streams.
        batch_size: Samples of a step, over all ranks.
        world_size: Number of ranks.
        steps: Number of steps that count.

    Returns:
        Share of the samples that were asked for in time, and loads for each sample.
    """
    mixing = _new_mixing(sigma, interval_steps, num_streams, batch_size)
    counts = torch.zeros(1 + _NUM_WORKERS, dtype=torch.int64).share_memory_()  # type: ignore[no-untyped-call]
    loader = MixingLoader(
        mixing,
        [_CountedRows(counts)] * num_streams,
        default_data_collator,
        rank=0,
        world_size=world_size,
        micro_batches=MicroBatchOptions(-(-batch_size // world_size)),
        stack_columns=dict,
        workers=WorkerOptions(_NUM_WORKERS, _PREFETCH_FACTOR, persistent_workers=True),
    )
    num_hits = num_misses = loads_before = 0
    for step in range(_WARM_UP_STEPS + steps):
        if step == _WARM_UP_STEPS:
            loads_before = _loads_at_rest(counts)
        batch = loader.next_batch()
        assert batch is not None, "the streams have no end"
        if step >= _WARM_UP_STEPS:
            num_hits += loader.hits_and_misses[0]
            num_misses += loader.hits_and_misses[1]
        mixing.observe(batch.plan, np.ones(num_streams), batch.plan.counts * ROW_LENGTH)
    num_loads = _loads_at_rest(counts) - loads_before
    loader.stop()
    num_used = num_hits + num_misses
    return num_hits / num_used, num_loads / num_used


def _new_mixing(sigma: float, interval_steps: int, num_streams: int, batch_size: int) -> Mixing:
    streams = [Stream(f"stream{number}", LazyRows(_NUM_SAMPLES)) for number in range(num_streams)]
    clock = Clock(batch_size, epoch_size=num_streams * _NUM_SAMPLES, budget=Budget(steps=10**9))
    return Mixing(Planner(streams, seed=0), RandomWalk(sigma, interval_steps), clock)


def _loads_at_rest(counts: torch.Tensor) -> int:
    """Waits until the workers have nothing to do, so that what lies ready is as much before as after."""
    before = -1
    while (now := int(counts.sum())) != before:
        before = now
        time.sleep(0.02)
    return now
