"""Signal and noise of a gradient by what the ranks' parts differ by, and how a run comes by it on one rank."""

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from mixer import schedules
from mixer.gradients.rank_noise import RankNoise, noise_of_ranks
from mixer.trainer.checks.requirements import check_gradient_noise
from tests.refusals import refused


def sums_of(parts: list[np.ndarray]) -> list[float]:
    """What the ranks add up, of `[count, size]` gradients of each rank's samples."""
    world_size, num_samples = len(parts), sum(len(part) for part in parts)
    local = [world_size / num_samples * part.sum(axis=0) for part in parts]
    average = sum(local) / world_size
    squares = sum(float(gradient @ gradient) for gradient in local)
    return [squares, world_size * float(average @ average), num_samples, sum(len(part) ** 2 for part in parts)]


def test_of_one_sample_a_rank_it_is_the_mean_product_of_different_samples() -> None:
    rows = np.random.default_rng(0).normal(size=(3, 5))
    products = rows @ rows.T
    signal = (products.sum() - np.trace(products)) / 6
    estimate = noise_of_ranks(sums_of([row[None] for row in rows]), 3)
    assert estimate.squared_norm == pytest.approx(signal)
    assert estimate.variance == pytest.approx(np.trace(products) / 3 - signal)


@pytest.mark.parametrize("counts", [(4, 4), (5, 2, 4), (6, 0, 1), (1, 1, 1, 9)])
def test_it_is_unbiased(counts: tuple[int, ...]) -> None:
    generator, true, deviation, num_repeats = np.random.default_rng(1), np.array([0.6, 0.8, 0.0]), 2.0, 4000
    found = []
    for _ in range(num_repeats):
        parts = [true + generator.normal(scale=deviation, size=(count, 3)) for count in counts]
        estimate = noise_of_ranks(sums_of(parts), len(counts))
        found.append((estimate.squared_norm, estimate.variance))
    mean, error = np.mean(found, axis=0), np.std(found, axis=0) / math.sqrt(num_repeats)
    assert (np.abs(mean - [1.0, 3 * deviation**2]) < 4 * error).all()
    alone = noise_of_ranks(sums_of([np.ones((3, 2)), np.zeros((0, 2))]), 2)  # one rank has all samples
    assert np.isnan([alone.squared_norm, alone.variance]).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_many_values_add_up_exactly_whatever_their_scale(dtype: torch.dtype, tmp_path: Path) -> None:
    dist.init_process_group("gloo", store=dist.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1)
    try:
        model = DistributedDataParallel(nn.Linear(1500, 1301, dtype=dtype))
        noise = RankNoise(model)
        for parameter in model.parameters():
            parameter.grad = torch.randn_like(parameter)
        noise.take_local()
        expected = sum(float(own.grad.double().square().sum()) for own in model.parameters() if own.grad is not None)
        found = noise.measure(5, 4.0, torch.device("cpu")).tolist()
        assert found == pytest.approx([expected / 16, expected / 16, 5, 25], rel=3e-6)
    finally:
        dist.destroy_process_group()
    with refused("model"):
        RankNoise(nn.Linear(2, 2))


def _trainer(world_size: int = 2, strategy: str = "random", **plugin: Any) -> Any:
    return SimpleNamespace(
        args=SimpleNamespace(world_size=world_size, train_sampling_strategy=strategy),
        accelerator=SimpleNamespace(gradient_state=SimpleNamespace(plugin_kwargs=plugin)),
    )


@pytest.mark.parametrize("schedule", [schedules.NoiseScale(), schedules.NormTest()])
def test_where_the_ranks_have_no_gradient_of_their_own(schedule: schedules.Schedule) -> None:
    with refused("batch_size"):
        check_gradient_noise(_trainer(sync_each_batch=True), schedule)
    check_gradient_noise(_trainer(), schedule)
    check_gradient_noise(_trainer(world_size=1, sync_each_batch=True), schedule)
    check_gradient_noise(_trainer(sync_each_batch=True), schedules.Constant(4))
