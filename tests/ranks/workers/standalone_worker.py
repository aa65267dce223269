"""What each rank does in the tests of loops without the Trainer: `torchrun ... standalone_worker.py FOLDER`."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset

from mixer import AdaptiveBatchSampler, MixingDataLoader
from tests.helpers import end_ranks, weights_of

NUM_SAMPLES = 21
NUM_EPOCHS = 3


def batch_size(step: int, size: int) -> int:
    """Sizes that leave the last batch of the first epoch a single sample: 5, 7, 8, 1."""
    return (5, 7, 8)[step % 3] + step // 6


def data() -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    return TensorDataset(torch.randn(NUM_SAMPLES, 4, generator=generator), torch.arange(NUM_SAMPLES))


def by_sampler(rank: int, world_size: int) -> Iterator[tuple[AdaptiveBatchSampler, Any]]:
    sampler = AdaptiveBatchSampler(data(), batch_size, rank=rank, world_size=world_size)
    loader = DataLoader(sampler.dataset, batch_sampler=sampler)
    for _ in range(NUM_EPOCHS):
        for batch in loader:
            yield sampler, batch


def by_loader(rank: int, world_size: int, num_workers: int = 0) -> Iterator[tuple[MixingDataLoader, Any]]:
    loader = MixingDataLoader(data(), batch_size, rank=rank, world_size=world_size, num_workers=num_workers)
    while loader.epoch < NUM_EPOCHS:
        for batch in loader:
            yield loader, batch


def train(accelerator: Accelerator, batches: Iterator[tuple[Any, Any]]) -> dict[str, Any]:
    """Trains, and gives the weights and the samples of this rank by epoch."""
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.05))
    seen: list[list[int]] = [[] for _ in range(NUM_EPOCHS)]
    num_paddings = 0
    for source, (rows, numbers) in batches:
        loss = torch.nn.functional.mse_loss(model(rows)[:, 0], numbers / NUM_SAMPLES)
        accelerator.backward(loss * source.loss_scale)
        optimizer.step()
        optimizer.zero_grad()
        num_paddings += source.is_padding
        seen[source.epoch] += [] if source.is_padding else numbers.tolist()
    return {"weights": weights_of(model).tolist(), "seen": seen, "num_paddings": num_paddings}


def main() -> None:
    accelerator = Accelerator(cpu=True)
    ranks = accelerator.process_index, accelerator.num_processes
    given = MixingDataLoader(data(), 4)
    results = {
        "sampler": train(accelerator, by_sampler(*ranks)),
        "loader": train(accelerator, by_loader(*ranks)),
        "loader_with_workers": train(accelerator, by_loader(*ranks, num_workers=1)),
        "ranks_by_themselves": [given.rank, given.world_size] == list(ranks),
        "prepared_loader_is_the_same": accelerator.prepare(given) is given,
    }
    (Path(sys.argv[1]) / f"standalone-{ranks[0]}.json").write_text(json.dumps(results))
    end_ranks()


if __name__ == "__main__":
    main()
