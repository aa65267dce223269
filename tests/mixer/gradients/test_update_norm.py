import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from mixer.gradients.update_norm import UpdateNorm


def network(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 3))


def flat(model: nn.Module) -> torch.Tensor:
    return torch.cat([parameter.detach().double().flatten() for parameter in model.parameters()])


class TestMeasure:
    def test_each_step_of_an_optimizer(self) -> None:
        model = network()
        optimizer, norm = torch.optim.AdamW(model.parameters(), lr=0.01), UpdateNorm(model)
        for _ in range(4):
            before = flat(model)
            optimizer.zero_grad()
            model(torch.randn(6, 5)).square().mean().backward()
            optimizer.step()
            measured = norm.measure()
            assert measured.shape == ()
            assert measured.dtype == torch.float32
            assert not measured.requires_grad
            assert measured.item() == pytest.approx((flat(model) - before).norm().item(), rel=1e-6)

    def test_standing_still(self) -> None:
        norm = UpdateNorm(network())
        assert norm.measure().item() == norm.measure().item() == 0.0

    def test_parameters_are_left_as_they_are(self) -> None:
        model = network()
        norm, before = UpdateNorm(model), flat(model)
        norm.measure()
        torch.testing.assert_close(flat(model), before, rtol=0, atol=0)

    @given(exponent=st.integers(-15, 15))
    def test_small_and_large_steps(self, exponent: int) -> None:
        model = nn.Linear(2, 1, bias=False)
        nn.init.zeros_(model.weight)
        norm = UpdateNorm(model)
        with torch.no_grad():
            model.weight.copy_(torch.tensor([[3.0, 4.0]]) * 10.0**exponent)
        assert norm.measure().item() == pytest.approx(5.0 * 10.0**exponent, rel=1e-5)

    def test_a_parameter_that_is_not_finite(self) -> None:
        model = network()
        norm = UpdateNorm(model)
        with torch.no_grad():
            model[0].bias[0] = float("nan")
        assert norm.measure().isnan()


class TestParameters:
    def test_frozen_ones_do_not_count(self) -> None:
        model = network()
        model[0].requires_grad_(False)
        norm = UpdateNorm(model)
        with torch.no_grad():
            model[0].weight.add_(1.0)
            model[2].bias.add_(1.0)
        assert norm.measure().item() == pytest.approx(3**0.5)

    def test_tied_ones_count_once(self) -> None:
        model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False))
        model[1].weight = model[0].weight
        norm = UpdateNorm(model)
        with torch.no_grad():
            model[0].weight.add_(0.5)
        assert norm.measure().item() == pytest.approx(2.0)

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
    def test_several_types_together(self, dtype: torch.dtype) -> None:
        model = network()
        model[2].to(dtype)
        norm = UpdateNorm(model)
        with torch.no_grad():
            model[0].bias.add_(1.0)
            model[2].bias.zero_()
            norm.measure()
            model[0].bias.add_(2.0)
            model[2].bias.add_(4.0)
        assert norm.measure().item() == pytest.approx((7 * 4 + 3 * 16) ** 0.5)

    def test_many_small_ones_of_half_precision_add_up(self) -> None:
        model = nn.Linear(1000, 100, bias=False).to(torch.bfloat16)
        nn.init.zeros_(model.weight)
        norm = UpdateNorm(model)
        with torch.no_grad():
            model.weight.fill_(0.0078125)
        assert norm.measure().item() == pytest.approx(0.0078125 * 100_000**0.5, rel=1e-5)


class TestRefusals:
    def test_a_model_without_trainable_parameters(self) -> None:
        with pytest.raises(ValueError, match="model has no trainable parameter"):
            UpdateNorm(network().requires_grad_(False))

    def test_parameters_that_are_elsewhere(self) -> None:
        model = nn.Linear(2, 2, bias=False)
        model.weight.data = torch.empty(0)
        with pytest.raises(ValueError, match="DeepSpeed ZeRO-3"):
            UpdateNorm(model)

    def test_sharded_parameters(self, tmp_path) -> None:
        torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1)
        try:
            mesh = init_device_mesh("cpu", (1,))
            model = nn.Linear(4, 4)
            model.weight = nn.Parameter(distribute_tensor(model.weight.detach(), mesh, [Shard(0)]))
            with pytest.raises(ValueError, match=r"FSDP or tensor parallelism has them in shards.*train with DDP"):
                UpdateNorm(model)
        finally:
            torch.distributed.destroy_process_group()
