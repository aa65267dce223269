"""What resuming costs by how far a run is, what its state takes, and whether planning takes ever more memory."""

import json
import multiprocessing
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import numpy as np
import psutil
import torch
from accelerate import Accelerator, skip_first_batches
from torch.utils.data import ConcatDataset, DataLoader
from transformers import default_data_collator

from benchmarks.common import rotated, spread
from benchmarks.speed.competitors import ROW_LENGTH, SHARES, Batch, LazyRows, new_mixing
from mixer.loading.batching import MicroBatchOptions
from mixer.loading.loader import MixingLoader
from mixer.measurements import Loss
from mixer.mixture.clock import Budget, Clock
from mixer.mixture.controller import Mixing
from mixer.mixture.planner import Planner
from mixer.mixture.stream import Stream
from mixer.policies import LossChange

OURS, THEIRS = "mixer", "accelerate.skip_first_batches"
FAR = 10**12
_BATCH_SIZE = 32


def resume(positions: Sequence[int], num_samples: int, repetitions: int) -> Any:
    """Times how long it takes until a run that goes on has its first batch.

    Args:
        positions: Samples seen, in ascending order.
        num_samples: Samples of each of the three streams; all together have to be more than the last position.
        repetitions: Number of turns each.

    Returns:
        By position the `milliseconds` of each competitor: a spread, or `None` where skipping would take hours.
    """
    datasets = [LazyRows(num_samples) for _ in SHARES]
    accelerator = Accelerator(cpu=True)
    results: list[Any] = []
    for position, (state, expected) in zip(positions, _states(datasets, positions), strict=True):
        competitors: dict[str, Callable[[], Batch]] = {
            OURS: lambda state=state: _resume_ours(datasets, state),  # type: ignore[misc]
            THEIRS: lambda position=position: _skip(datasets, accelerator, position),  # type: ignore[misc]
        }
        assert torch.equal(competitors[OURS]()["input_ids"], expected), "the resumed run goes on otherwise"
        times: dict[str, list[float]] = {name: [] for name in competitors}
        for number in range(repetitions):
            for name in rotated(list(competitors), number):
                times[name].append(_milliseconds(competitors[name]))
        results.append(_result(position, dict(times)))
    far = _far(json.loads(state))
    times_far = [_milliseconds(lambda: _resume_ours(datasets, far)) for _ in range(repetitions)]
    return [*results, _result(FAR, {OURS: times_far, THEIRS: None})]


def _result(position: int, times: dict[str, list[float] | None]) -> Any:
    spreads = {name: None if values is None else spread(values) for name, values in times.items()}
    return {"position": position, "milliseconds": spreads}


def _milliseconds(task: Callable[[], Any]) -> float:
    start = time.perf_counter()
    task()
    return (time.perf_counter() - start) * 1e3


def _states(datasets: Sequence[Any], positions: Sequence[int]) -> Iterator[tuple[str, torch.Tensor]]:
    """Plans a run through and gives its state at some positions, and the tokens that come next there."""
    mixing = new_mixing(datasets, SHARES, _BATCH_SIZE)
    loader = _loader(mixing, datasets)
    for position in positions:
        while mixing.seen.sum() + _BATCH_SIZE <= position:
            _plan_and_observe(mixing)
        state = json.dumps(mixing.state_dict())
        step_batch = loader.next_batch()
        assert step_batch is not None, "the streams have no end"
        yield state, step_batch.micro_batches[0].inputs["input_ids"]
        mixing.observe(step_batch.plan, step_batch.plan.counts * ROW_LENGTH, {Loss: np.ones(len(datasets))})


def _plan_and_observe(mixing: Mixing) -> Any:
    plan = mixing.next_plan()
    assert plan is not None, "the streams have no end"
    mixing.observe(plan, plan.counts * ROW_LENGTH, {Loss: np.ones(len(plan.counts))})
    return plan


def _loader(mixing: Mixing, datasets: Sequence[Any]) -> MixingLoader:
    options = MicroBatchOptions(_BATCH_SIZE)
    return MixingLoader(mixing, datasets, default_data_collator, micro_batches=options, stack_columns=dict)


def _resume_ours(datasets: Sequence[Any], state: str) -> Batch:
    mixing = new_mixing(datasets, SHARES, _BATCH_SIZE)
    mixing.load_state_dict(json.loads(state))
    step_batch = _loader(mixing, datasets).next_batch()
    assert step_batch is not None, "the streams have no end"
    batch: Batch = step_batch.micro_batches[0].inputs
    return batch


def _skip(datasets: Sequence[Any], accelerator: Accelerator, position: int) -> Batch:
    loader: DataLoader[Any] = DataLoader(
        ConcatDataset(datasets), _BATCH_SIZE, shuffle=True, collate_fn=default_data_collator
    )
    batch: Batch = next(iter(skip_first_batches(accelerator.prepare(loader), position // _BATCH_SIZE)))
    return batch


def _far(state: dict[str, Any]) -> str:
    """Puts a saved state as far as no benchmark can run."""
    num_streams = len(state["planner"]["streams"])
    for stream in state["planner"]["streams"].values():
        stream["position"] = stream["seen"] = FAR // num_streams
    clock = state["clock"]
    clock["step"] = FAR // clock["batch_size"]
    steps_per_epoch = -(-clock["epoch_size"] // clock["batch_size"])
    clock["num_epochs_done"], clock["step_in_epoch"] = divmod(clock["step"], steps_per_epoch)
    state["num_tokens"] = [FAR // num_streams * ROW_LENGTH] * num_streams
    return json.dumps(state)


def state_sizes(num_streams: int = 10, position: int = 1_000) -> dict[str, int]:
    """Measures the saved state of an adaptive mixture.

    Args:
        num_streams: Number of streams.
        position: Samples seen.

    Returns:
        Bytes of its JSON by the samples seen: so many, and a trillion.
    """
    streams = [Stream(f"stream{number}", LazyRows(1_000_000)) for number in range(num_streams)]
    clock = Clock(_BATCH_SIZE, epoch_size=num_streams * 1_000_000, budget=Budget(steps=10**12))
    mixing = Mixing(Planner(streams, seed=0), LossChange(), clock)
    random = np.random.default_rng(0)
    while mixing.seen.sum() < position:
        plan = mixing.next_plan()
        assert plan is not None, "the streams have no end"
        mixing.observe(plan, plan.counts * ROW_LENGTH, {Loss: random.normal(3.0, 0.1, num_streams)})
    state = json.dumps(mixing.state_dict())
    far = _far(json.loads(state))
    mixing.load_state_dict(json.loads(far))
    return {f"{position:.0e}": len(state), f"{FAR:.0e}": len(json.dumps(mixing.state_dict()))}


def memory(steps: Sequence[int]) -> dict[str, float]:
    """Measures how memory grows while steps are planned, in a process of its own.

    Args:
        steps: After how many planned steps to look, in ascending order.

    Returns:
        Megabytes over those at the start, by the number of steps.
    """
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(_memory, steps).result()


def _memory(steps: Sequence[int]) -> dict[str, float]:
    mixing = new_mixing([LazyRows(1_000_000) for _ in SHARES], SHARES, _BATCH_SIZE)
    process = psutil.Process()
    before = process.memory_info().rss
    grown = {}
    done = 0
    for count in steps:
        for _ in range(count - done):
            mixing.planner.rank_share(_plan_and_observe(mixing), 0, 1)
        done = count
        grown[str(count)] = (process.memory_info().rss - before) / 1e6
    return grown
