"""How often the prediction of the coming steps is right where the weights keep changing, on one rank of several."""

import itertools
import time
from collections.abc import Callable
from typing import Any

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
from mixer.mixture.plan import Plan
from mixer.mixture.planner import Planner
from mixer.mixture.stream import Stream
from mixer.policies import Decision, Mixture, Observation, Policy
from mixer.utils.arrays import Int64Array

Keys = list[tuple[int, int]]
Assignment = Callable[[Plan], Keys]

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


def hits(sigma: float, interval_steps: int, world_size: int, num_streams: int, batch_size: int, steps: int) -> Any:
    """Measures how many samples of rank 0 its workers had been asked for in time, and what they loaded in vain.

    Args:
        sigma: See `RandomWalk`.
        interval_steps: See `RandomWalk`.
        world_size: Number of ranks.
        num_streams: Number of streams.
        batch_size: Samples of a step, over all ranks.
        steps: Number of steps that count.

    Returns:
        `hit_rate` and `loads_per_sample` of the loader; and, simulated, of the same rule (`by_home`) and of one that
        gives item `i` of a step's list to rank `i mod W` (`by_list`).
    """
    setting = (sigma, interval_steps, num_streams, batch_size)
    return {
        "sigma": sigma,
        "interval_steps": interval_steps,
        "world_size": world_size,
        "num_streams": num_streams,
        "batch_size": batch_size,
        "loader": _measure(_new_mixing(*setting), world_size, batch_size, steps),
        "by_home": _simulate(mixing := _new_mixing(*setting), _by_home(mixing, world_size), steps),
        "by_list": _simulate(_new_mixing(*setting), lambda plan: _by_list(plan, world_size), steps),
    }


def _new_mixing(sigma: float, interval_steps: int, num_streams: int, batch_size: int) -> Mixing:
    streams = [Stream(f"stream{number}", LazyRows(_NUM_SAMPLES)) for number in range(num_streams)]
    clock = Clock(batch_size, epoch_size=num_streams * _NUM_SAMPLES, budget=Budget(steps=10**9))
    return Mixing(Planner(streams, seed=0), RandomWalk(sigma, interval_steps), clock)


def _observe(mixing: Mixing, plan: Plan) -> None:
    mixing.observe(plan, np.ones(len(mixing.names)), plan.counts * ROW_LENGTH)


def _measure(mixing: Mixing, world_size: int, batch_size: int, steps: int) -> dict[str, float]:
    counts = torch.zeros(1 + _NUM_WORKERS, dtype=torch.int64).share_memory_()  # type: ignore[no-untyped-call]
    loader = MixingLoader(
        mixing,
        [_CountedRows(counts)] * len(mixing.names),
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
        _observe(mixing, batch.plan)
    num_loads = _loads_at_rest(counts) - loads_before
    loader.stop()
    return _rates(num_hits, num_hits + num_misses, num_loads)


def _loads_at_rest(counts: torch.Tensor) -> int:
    """Waits until the workers have nothing to do, so that what lies ready is as much before as after."""
    before = -1
    while (now := int(counts.sum())) != before:
        before = now
        time.sleep(0.02)
    return now


def _rates(num_hits: int, num_used: int, num_loads: int) -> dict[str, float]:
    return {"hit_rate": num_hits / num_used, "loads_per_sample": num_loads / num_used}


def _by_home(mixing: Mixing, world_size: int) -> Assignment:
    def assign(plan: Plan) -> Keys:
        share = mixing.planner.rank_share(plan, 0, world_size)
        return [(part.stream_id, int(position)) for part in share for position in part.positions]

    return assign


def _by_list(plan: Plan, world_size: int) -> Keys:
    """Gives rank 0 the items 0, W, 2 W ... of all samples of a step in a row."""
    ends = np.cumsum(plan.counts)
    items: Int64Array = np.arange(0, plan.total, world_size)
    stream_ids = np.searchsorted(ends, items, side="right")
    positions = plan.starts[stream_ids] + items - (ends - plan.counts)[stream_ids]
    return list(zip(stream_ids.tolist(), positions.tolist(), strict=True))


def _simulate(mixing: Mixing, assign: Assignment, steps: int) -> dict[str, float]:
    """Keeps account of what is asked for ahead, as `mixer.loading.prefetch` does, without loading anything."""
    num_ahead = _NUM_WORKERS * _PREFETCH_FACTOR + 1
    due_by_key: dict[tuple[int, int], int] = {}
    num_hits = num_used = num_loads = 0
    last_due = -1
    for step in range(_WARM_UP_STEPS + steps):
        plan = mixing.next_plan()
        assert plan is not None, "the streams have no end"
        own = assign(plan)
        # What was asked for as a part of a later step is not waited for: it is loaded again, on the spot.
        hit = sum(due_by_key.get(key, step + 1) <= step for key in own)
        asked = len(own) - hit
        due_by_key.update(dict.fromkeys(own, step))
        for coming in itertools.islice(mixing.forecast(), num_ahead):
            if coming.step >= last_due and (new := [key for key in assign(coming) if key not in due_by_key]):
                due_by_key.update(dict.fromkeys(new, coming.step))
                asked, last_due = asked + len(new), coming.step
        ends = (plan.starts + plan.counts).tolist()
        due_by_key = {key: due for key, due in due_by_key.items() if key[1] >= ends[key[0]]}
        if step >= _WARM_UP_STEPS:
            num_hits, num_used, num_loads = num_hits + hit, num_used + len(own), num_loads + asked
        _observe(mixing, plan)
    return _rates(num_hits, num_used, num_loads)
