from pathlib import Path

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from mixer.gradients.step_length import StepLength


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 3))


def test_it_is_the_length_of_each_step_of_an_optimizer() -> None:
    model = network()
    optimizer, norm = torch.optim.AdamW(model.parameters(), lr=0.01), StepLength(model)
    assert norm.measure().item() == 0.0
    flat = nn.utils.parameters_to_vector
    for _ in range(4):
        before = flat(model.parameters()).detach().double()
        optimizer.zero_grad()
        model(torch.randn(6, 5)).square().mean().backward()
        optimizer.step()
        after, measured = flat(model.parameters()).detach().double(), norm.measure()
        assert (measured.shape, measured.dtype, measured.requires_grad) == ((), torch.float32, False)
        assert measured.item() == pytest.approx((after - before).norm().item(), rel=1e-6)
    with torch.no_grad():
        model[0].bias[0] = float("nan")
    assert norm.measure().isnan()


def test_frozen_parameters_do_not_count_and_tied_ones_count_once() -> None:
    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False), nn.Linear(4, 4))
    model[1].weight = model[0].weight
    model[2].requires_grad_(False)
    norm = StepLength(model)
    with torch.no_grad():
        model[0].weight.add_(0.5)
        model[2].weight.add_(1.0)
    assert norm.measure().item() == pytest.approx(2.0)


def test_several_types_together() -> None:
    model = network()
    model[2].to(torch.bfloat16)
    norm = StepLength(model)
    with torch.no_grad():
        model[0].bias.add_(1.0)
        model[2].bias.zero_()
        norm.measure()
        model[0].bias.add_(2.0)
        model[2].bias.add_(4.0)
    assert norm.measure().item() == pytest.approx((7 * 4 + 3 * 16) ** 0.5)


def test_many_small_ones_of_half_precision_add_up() -> None:
    model = nn.Linear(1000, 100, bias=False).to(torch.bfloat16)
    nn.init.zeros_(model.weight)
    norm = StepLength(model)
    with torch.no_grad():
        model.weight.fill_(0.0078125)
    assert norm.measure().item() == pytest.approx(0.0078125 * 100_000**0.5, rel=1e-5)


def test_what_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="model has no trainable parameter"):
        StepLength(network().requires_grad_(False))
    elsewhere, model = nn.Linear(2, 2, bias=False), nn.Linear(4, 4)
    elsewhere.weight.data = torch.empty(0)
    with pytest.raises(ValueError, match="DeepSpeed ZeRO-3"):
        StepLength(elsewhere)
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1)
    try:
        mesh = init_device_mesh("cpu", (1,))
        model.weight = nn.Parameter(distribute_tensor(model.weight.detach(), mesh, [Shard(0)]))
        with pytest.raises(ValueError, match=r"FSDP or tensor parallelism has them in shards.*train with DDP"):
            StepLength(model)
    finally:
        torch.distributed.destroy_process_group()
