"""Signal and noise of a gradient by what the ranks' parts differ by, and how a run comes by it on one rank."""

import copy
import gc
import math
import weakref
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from mixer import AdaptiveBatchSampler, MixingTrainer, schedules
from mixer.gradients.noise_scale import RankNoise, noise_of_ranks
from mixer.mixture.resolve import check_gradient_noise
from tests.helpers import Tokens, arguments, build_model

CPU = torch.device("cpu")


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


def test_all_samples_on_one_rank_tell_nothing() -> None:
    estimate = noise_of_ranks(sums_of([np.ones((3, 2)), np.zeros((0, 2))]), 2)
    assert math.isnan(estimate.squared_norm)
    assert math.isnan(estimate.variance)


@pytest.fixture
def _alone(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


class _Branches(nn.Module):
    """Layers of which the second is passed by if there is no need for it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.frozen = nn.Linear(3, 4), nn.Linear(4, 4), nn.Linear(4, 1)
        self.frozen.requires_grad_(False)

    def forward(self, values: torch.Tensor, uses_second: bool) -> torch.Tensor:
        hidden = torch.tanh(self.first(values))
        return self.frozen(self.second(hidden) if uses_second else hidden).sum()


def squared_norm(model: nn.Module) -> float:
    return sum(float(p.grad.double().square().sum()) for p in model.parameters() if p.grad is not None)


@pytest.mark.usefixtures("_alone")
def test_parameters_that_the_last_backward_leaves_out_or_nobody_uses() -> None:
    model = DistributedDataParallel(_Branches(), find_unused_parameters=True)
    noise = RankNoise(model)
    for last in (True, False):
        for first in (True, False):
            model.zero_grad()
            with model.no_sync():
                model(torch.randn(2, 3), first).backward()
            with noise.listening():
                model(torch.randn(3, 3), last).backward()
            expected = squared_norm(model)
            assert noise.measure(5, 1.0, CPU).tolist() == pytest.approx([expected, expected, 5, 25])


@pytest.mark.usefixtures("_alone")
def test_what_a_scaler_does_is_undone() -> None:
    model = DistributedDataParallel(_Branches())
    noise, values, found = RankNoise(model), torch.randn(2, 3), []
    for scale in (1.0, torch.tensor(1024.0)):
        model.zero_grad()
        with noise.listening():
            (scale * model(values, True)).backward()
        found.append(noise.measure(2, scale, CPU).tolist())
    assert found[0] == pytest.approx(found[1])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.usefixtures("_alone")
def test_many_values_add_up_exactly(dtype: torch.dtype) -> None:
    model = DistributedDataParallel(nn.Linear(1500, 1301, dtype=dtype))
    noise = RankNoise(model)
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    noise.take_local()
    expected = squared_norm(model)
    assert noise.measure(1, 1.0, CPU).tolist()[:2] == pytest.approx([expected, expected], rel=3e-6)


@pytest.mark.usefixtures("_alone")
def test_sparse_gradients() -> None:
    model = DistributedDataParallel(nn.Embedding(9, 2, sparse=True))
    noise = RankNoise(model)
    with noise.listening():
        model(torch.tensor([1, 1, 3])).sum().backward()
    assert noise.measure(3, 1.0, CPU).tolist()[:2] == pytest.approx([10.0, 10.0])


@pytest.mark.usefixtures("_alone")
def test_hooks_are_there_while_it_listens_and_hold_nothing() -> None:
    model = DistributedDataParallel(_Branches())

    def count_hooks(module: nn.Module) -> int:
        return sum(len(p._post_accumulate_grad_hooks or ()) for p in module.parameters())

    def fail(noise: RankNoise) -> None:
        with noise.listening():
            assert count_hooks(model) == 4
            assert count_hooks(copy.deepcopy(model.module)) == 0
            raise KeyError

    noise = RankNoise(model)
    with pytest.raises(KeyError):
        fail(noise)
    assert count_hooks(model) == 0
    listening = noise.listening()
    with listening:
        gone = weakref.ref(noise)
        hooks = [hook for p in model.parameters() for hook in (p._post_accumulate_grad_hooks or {}).values()]
        assert not any(noise in gc.get_referents(hook) for hook in hooks)
    del noise, listening, hooks
    assert gone() is None


@pytest.mark.usefixtures("_alone")
def test_an_error_in_between_leaves_nothing_behind() -> None:
    model = DistributedDataParallel(_Branches())
    noise = RankNoise(model)
    model(torch.randn(2, 3), True).backward()
    noise.take_local()
    model.zero_grad()
    with noise.listening():
        pass
    assert noise.measure(2, 1.0, CPU).tolist() == [0.0, 0.0, 2.0, 4.0]


def test_a_model_that_is_not_wrapped_is_refused() -> None:
    with pytest.raises(ValueError, match="sharded, or not wrapped in DDP"):
        RankNoise(nn.Linear(2, 2))


def test_a_schedule_sees_what_a_probe_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    schedule, shown = schedules.NoiseScale(interval_steps=2, initial=8, maximum=8), []
    update = schedule.update

    def noted(observation: schedules.BatchObservation) -> schedules.BatchDecision:
        shown.append(observation.noise)
        return update(observation)

    monkeypatch.setattr(schedule, "update", noted)
    args = arguments(tmp_path, max_steps=4)
    trainer = MixingTrainer(build_model("llama"), args, train_dataset=Tokens(60, 1), batch_size=schedule)
    trainer.train()
    found = trainer.ledger.gradients()
    assert found["step"].tolist() == [2, 4]
    assert [seen is not None for seen in shown] == [False, True, False, True]
    seen = [(noise.squared_norm, noise.variance) for noise in shown[1::2]]
    np.testing.assert_allclose(seen, found[["squared_norm", "variance"]])


def _trainer(world_size: int = 2, strategy: str = "random", **plugin: Any) -> Any:
    return SimpleNamespace(
        args=SimpleNamespace(world_size=world_size, train_sampling_strategy=strategy),
        accelerator=SimpleNamespace(gradient_state=SimpleNamespace(plugin_kwargs=plugin)),
    )


@pytest.mark.parametrize("schedule", [schedules.NoiseScale(), schedules.NormTest()])
def test_where_the_ranks_have_no_gradient_of_their_own(schedule: schedules.Schedule) -> None:
    with pytest.raises(ValueError, match="sync_each_batch=True averages them after each micro-batch"):
        check_gradient_noise(_trainer(sync_each_batch=True), schedule)
    check_gradient_noise(_trainer(), schedule)
    check_gradient_noise(_trainer(world_size=1, sync_each_batch=True), schedule)
    check_gradient_noise(_trainer(sync_each_batch=True), schedules.Constant(4))


def test_a_loop_of_one_s_own_is_told_what_it_has_to_report(caplog: pytest.LogCaptureFixture) -> None:
    sampler = AdaptiveBatchSampler(9, schedules.NoiseScale(initial=2, interval_steps=2))
    with caplog.at_level("WARNING", logger="mixer"):
        for _ in sampler:
            sampler.observe(loss=1.0)
    assert "depends on ['gradients']" in caplog.text
