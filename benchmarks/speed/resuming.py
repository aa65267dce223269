"""What resuming costs by how far a run is: from nothing to the first batch of a saved state."""

import json
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator, skip_first_batches
from torch.utils.data import ConcatDataset, DataLoader
from transformers import default_data_collator

from benchmarks.common import rotated, spread
from benchmarks.speed.competitors import ROW_LENGTH, SHARES, Batch, LazyRows, new_mixing
from mixer.loading.batching import MicroBatchOptions
from mixer.loading.collate import Collation
from mixer.loading.loader import MixingLoader
from mixer.measurements import Loss
from mixer.mixture.controller import Mixing

OURS, THEIRS = "mixer", "accelerate.skip_first_batches"
_BATCH_SIZE = 32


def resume(positions: Sequence[int], num_samples: int, repetitions: int) -> dict[int, dict[str, dict[str, float]]]:
    """Times how long it takes until a run that goes on has its first batch.

    Args:
        positions: Samples seen, in ascending order.
        num_samples: Samples of each of the three streams; all together have to be more than the last position.
        repetitions: Number of turns each.

    Returns:
        By position and competitor the spread of the milliseconds.
    """
    datasets = [LazyRows(num_samples) for _ in SHARES]
    accelerator = Accelerator(cpu=True)
    found = {}
    for position, (state, expected) in zip(positions, _states(datasets, positions), strict=True):
        competitors: dict[str, Callable[[], Batch]] = {
            OURS: lambda state=state: _resume_ours(datasets, state),  # type: ignore[misc]
            THEIRS: lambda position=position: _skip(datasets, accelerator, position),  # type: ignore[misc]
        }
        assert torch.equal(competitors[OURS]()["input_ids"], expected), "the resumed run goes on otherwise"
        times: dict[str, list[float]] = {name: [] for name in competitors}
        for number in range(repetitions):
            for name in rotated(list(competitors), number):
                started = time.perf_counter()
                competitors[name]()
                times[name].append((time.perf_counter() - started) * 1e3)
        found[position] = {name: spread(own) for name, own in times.items()}
    return found


def _states(datasets: Sequence[Any], positions: Sequence[int]) -> Iterator[tuple[str, torch.Tensor]]:
    """Plans a run through and gives its state at some positions, and the tokens that come next there."""
    mixing = new_mixing(datasets, SHARES, _BATCH_SIZE)
    for position in positions:
        while mixing.seen.sum() + _BATCH_SIZE <= position:
            plan = mixing.next_plan()
            assert plan is not None, "the streams have no end"
            mixing.observe(plan, plan.counts * ROW_LENGTH, {Loss: np.ones(len(plan.counts))})
        state = json.dumps(mixing.state_dict())
        yield state, _resume_ours(datasets, state, mixing)["input_ids"]


def _resume_ours(datasets: Sequence[Any], state: str, mixing: Mixing | None = None) -> Batch:
    if mixing is None:
        mixing = new_mixing(datasets, SHARES, _BATCH_SIZE)
        mixing.load_state_dict(json.loads(state))
    options = MicroBatchOptions(_BATCH_SIZE)
    collation = Collation(default_data_collator, mixing.names, stack_columns=dict)
    loader = MixingLoader(mixing, datasets, collation, micro_batches=options)
    step_batch = loader.next_batch()
    assert step_batch is not None, "the streams have no end"
    mixing.observe(step_batch.plan, step_batch.plan.counts * ROW_LENGTH, {Loss: np.ones(len(datasets))})
    batch: Batch = step_batch.micro_batches[0].inputs
    return batch


def _skip(datasets: Sequence[Any], accelerator: Accelerator, position: int) -> Batch:
    loader: DataLoader[Any] = DataLoader(
        ConcatDataset(datasets), _BATCH_SIZE, shuffle=True, collate_fn=default_data_collator
    )
    batch: Batch = next(iter(skip_first_batches(accelerator.prepare(loader), position // _BATCH_SIZE)))
    return batch
