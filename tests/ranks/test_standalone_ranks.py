"""Loops without the Trainer, on two ranks under accelerate."""

import itertools
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset

from mixer import AdaptiveBatchSampler, MixingDataLoader
from tests.helpers import weights_of
from tests.ranks.warm import launched, some

NUM_SAMPLES, NUM_EPOCHS = 21, 3


def batch_size(step: int, size: int) -> int:
    """Sizes that leave the last batch of the first epoch a single sample: 5, 7, 8, 1."""
    return (5, 7, 8)[step % 3] + step // 6


def data() -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    return TensorDataset(torch.randn(NUM_SAMPLES, 4, generator=generator), torch.arange(NUM_SAMPLES))


def batches(name: str, rank: int, world_size: int) -> Iterator[tuple[Any, Any]]:
    if name == "sampler":
        source: Any = AdaptiveBatchSampler(data(), batch_size, rank=rank, world_size=world_size)
        loader: Any = DataLoader(source.dataset, batch_sampler=source)
    else:
        workers = int(name == "workers")
        source = loader = MixingDataLoader(data(), batch_size, rank=rank, world_size=world_size, num_workers=workers)
    for _ in range(NUM_EPOCHS):
        for batch in loader:
            yield source, batch


def loop(name: str, folder: Path) -> dict[str, Any]:
    accelerator = Accelerator(cpu=True)
    given, ranks = MixingDataLoader(data(), 4), (accelerator.process_index, accelerator.num_processes)
    assert (given.rank, given.world_size) == ranks
    assert accelerator.prepare(given) is given
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.05))
    seen: list[list[int]] = [[] for _ in range(NUM_EPOCHS)]
    num_paddings = 0
    for source, (rows, numbers) in batches(name, *ranks):
        loss = torch.nn.functional.mse_loss(model(rows)[:, 0], numbers / NUM_SAMPLES)
        accelerator.backward(loss * source.loss_scale)
        optimizer.step()
        optimizer.zero_grad()
        num_paddings += source.is_padding
        seen[source.epoch] += [] if source.is_padding else numbers.tolist()
    return {"weights": weights_of(model), "seen": seen, "num_paddings": num_paddings}


results = launched(partial(loop, "sampler"), partial(loop, "loader"), rare=[partial(loop, "workers")])


@pytest.mark.parametrize("name", some(["sampler", "loader", "workers"], ["sampler", "loader"]))
def test_ranks_see_every_sample_once_an_epoch_and_end_with_the_weights_of_one(results, name, tmp_path) -> None:
    for parts in zip(*(result[name]["seen"] for result in results), strict=True):
        assert sorted(itertools.chain(*parts)) == list(range(NUM_SAMPLES))
        assert all(parts)
    assert sum(result[name]["num_paddings"] for result in results) > 0
    assert torch.equal(results[0][name]["weights"], results[1][name]["weights"])
    alone = loop("loader", tmp_path)["weights"]
    torch.testing.assert_close(results[0][name]["weights"], alone, rtol=0, atol=1e-6)
