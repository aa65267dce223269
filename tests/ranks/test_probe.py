"""The gradient probe on two ranks."""

import contextlib
import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.nn.parallel import DistributedDataParallel

from mixer.gradients.probe import GradientProbe
from mixer.measurements.gradients import GradientStatistics
from tests.mixer.gradients.probe.cases import Mlp, build, vector_case
from tests.mixer.gradients.probe.reference import Case, expected_of
from tests.ranks.launch import message_of
from tests.ranks.warm import Results, launched

DDP, FSDP = ("llama-tied", "gpt2", "mlp"), ("llama", "mlp", "llama-tied")
FIELDS = ("gram", "variance", "squared_norm", "counts", "shares", "gram_error")


def as_lists(statistics: GradientStatistics) -> dict[str, Any]:
    return {name: getattr(statistics, name).tolist() for name in FIELDS}


def own_rows(case: Case) -> list[int]:
    return list(range(dist.get_rank(), case.num_rows, 2))


def run(case: Case, model: nn.Module, probe: GradientProbe, parts: Sequence[Sequence[int]]) -> dict[str, Any]:
    """One step of this rank's micro-batches; gradients are averaged over the ranks in the last."""
    for number, part in enumerate(parts):
        is_last = number == len(parts) - 1
        waits = isinstance(model, DistributedDataParallel) and not is_last
        with model.no_sync() if waits else contextlib.nullcontext():
            probe.start(case.ids(part), case.items[list(part)])
            (2 * case.loss(part, model)).backward()
    return as_lists(probe.finish())


def _distance(model: nn.Module, twin: nn.Module) -> float:
    """Of the gradients, relative to those of the twin."""
    gradients = ([one.grad for one in net.parameters() if one.grad is not None] for net in (model, twin))
    whole = ([one.full_tensor() if hasattr(one, "full_tensor") else one for one in some] for some in gradients)
    found, expected = (torch.cat([one.flatten() for one in some]) for some in whole)
    return float((found - expected).norm() / expected.norm())


def _alone(name: str) -> tuple[Case, nn.Module, dict[str, Any]]:
    """A case, a model with the gradients of a plain backward on one rank, and what one rank finds."""
    case = build(name)
    twin = copy.deepcopy(case.model)
    case.loss(model=twin).backward()
    probe = GradientProbe(case.model, 3, "sketch", sketch_size=6, world_size=1)
    found = {"sketch": as_lists(case.probed(probe)), "exact": as_lists(expected_of(case))}
    case.model.zero_grad()
    return case, twin, found


def with_ddp(name: str) -> dict[str, Any]:
    case, twin, results = _alone(name)
    rows = own_rows(case)
    for number, parts in enumerate(([rows], [rows[:1], rows[1:3], rows[3:]])):
        for mode, options in (("sketch", {"sketch_size": 6}), ("exact", {"exact_accumulate": True})):
            case.model.zero_grad()
            model = DistributedDataParallel(case.model)
            found = run(case, model, GradientProbe(model, 3, mode, **options), parts)
            results[f"{mode}-{number}"] = {**found, "distance": _distance(model.module, twin)}
    return results


def with_fsdp(name: str) -> dict[str, Any]:
    (case, twin, results), mesh = _alone(name), init_device_mesh("cpu", (2,))
    for layer in case.model.model.layers if name.startswith("llama") else case.model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(case.model, mesh=mesh)
    probe, rows = GradientProbe(case.model, 3, "sketch", sketch_size=6), own_rows(case)
    found = run(case, case.model, probe, [rows[:2], rows[2:]])
    results["sketch-0"] = {**found, "distance": _distance(case.model, twin), "coverage": probe.coverage}
    return results


def of_one_stream_each(folder: Path) -> dict[str, Any]:
    """Whole gradients; rank 0 has micro-batches of streams 0 and 2, rank 1 of 0 and 1."""
    torch.manual_seed(0)
    case = vector_case(Mlp(5, 8, 6, 4), [0, 0, 2, 2, 0, 1, 1, 0], 5, 4)
    parts = [[[0], [1], [2, 3]], [[4, 7], [5], [6]]][dist.get_rank()]
    single = GradientProbe(case.model, 3, homogeneous=True, exact_accumulate=True, world_size=1)
    expected = as_lists(case.probed(single, [[0], [1], [2, 3], [4, 7], [5], [6]]))
    case.model.zero_grad()
    model = DistributedDataParallel(case.model)
    probe = GradientProbe(model, 3, homogeneous=True, exact_accumulate=True)
    return {"found": run(case, model, probe, parts), "expected": expected}


def one_rank_cannot_read(folder: Path) -> dict[str, Any]:
    """A layer that is used in another way on rank 1 is left out on both."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(5, 6), nn.Linear(6, 4)

        def forward(self, inputs: Tensor) -> Tensor:
            hidden = torch.tanh(self.first(inputs))
            return nn.functional.linear(hidden, self.last.weight) if dist.get_rank() else self.last(hidden)

    case = vector_case(Net(), [0, 1, 2] * 3, 5, 4)
    probe = GradientProbe(case.model, 3, "sketch")
    return {"found": run(case, case.model, probe, [own_rows(case)]), "coverage": probe.coverage}


def _backward_on_the_first_rank_only() -> None:
    model = nn.Linear(2, 2)
    probe = GradientProbe(model, 2, "sketch")
    probe.start([0, 1])
    loss = model(torch.randn(2, 2)).sum()
    if dist.get_rank() == 0:
        loss.backward()
    probe.finish()


def errors(folder: Path) -> list[str]:
    """Of an exact probe, of whole gradients of a sharded model, of the sharding before FSDP2, without a backward."""
    sharded = nn.Sequential(nn.Linear(4, 4))
    fully_shard(sharded, mesh=init_device_mesh("cpu", (2,)))
    return [
        message_of(lambda: GradientProbe(nn.Linear(2, 2), 2)),
        message_of(lambda: GradientProbe(sharded, 2, "sketch", homogeneous=True)),
        message_of(lambda: GradientProbe(FullyShardedDataParallel(nn.Linear(4, 4), device_id="cpu"), 2, "sketch")),
        message_of(_backward_on_the_first_rank_only),
    ]


def ddp(folder: Path) -> dict[str, Any]:
    dist.init_process_group("gloo")
    return {name: with_ddp(name) for name in DDP}


def fsdp(folder: Path) -> dict[str, Any]:
    return {name: with_fsdp(name) for name in FSDP}


results = launched(ddp, fsdp, of_one_stream_each, one_rank_cannot_read, errors)


def _assert_equal(found: dict[str, Any], expected: dict[str, Any]) -> None:
    size = np.nanmax(np.abs(np.array(expected["gram"])))
    for name in ("gram", "shares", "counts"):
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-5, atol=1e-5 * size)
    gram_errors = [np.nan_to_num(one["gram_error"]) for one in (found, expected)]  # unknown where a stream is missing
    np.testing.assert_allclose(*gram_errors, rtol=1e-5)
    for name in ("variance", "squared_norm"):  # differences of large numbers
        most = np.nanmax(np.abs(np.array(expected["variance"])))
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-5, atol=3e-5 * max(size, most))


@pytest.mark.parametrize("mode", ["sketch", "exact"])
@pytest.mark.parametrize("name", DDP)
def test_under_ddp_it_equals_one_rank(results: Results, name: str, mode: str) -> None:
    for found in (result["ddp"][name] for result in results):
        for number in (0, 1):
            _assert_equal(found[f"{mode}-{number}"], found[mode])
            assert found[f"{mode}-{number}"]["distance"] < 1e-5


@pytest.mark.parametrize("name", FSDP)
def test_a_sketch_under_fsdp_equals_one_rank(results: Results, name: str) -> None:
    for found in (result["fsdp"][name] for result in results):
        _assert_equal(found["sketch-0"], found["sketch"])
        assert found["sketch-0"]["distance"] < 1e-5
        assert found["sketch-0"]["coverage"] == 1.0


def test_whole_gradients_of_micro_batches_equal_one_rank(results: Results) -> None:
    for result in results:
        _assert_equal(result["of_one_stream_each"]["found"], result["of_one_stream_each"]["expected"])


def test_what_one_rank_cannot_read_is_left_out_on_all(results: Results) -> None:
    first, second = (result["one_rank_cannot_read"] for result in results)
    np.testing.assert_equal(first, second)
    assert first["coverage"] == pytest.approx(40 / 64)  # all but the weight; the bias has no gradient there


def test_what_cannot_be_done_on_several_ranks_is_refused_with_the_reason(results: Results) -> None:
    told = [
        "mode='exact' needs the gradient of one micro-batch on one rank, but world_size is 2. Use 'sketch'",
        "homogeneous=True reads each rank's own gradients, and FSDP2 shards them. Use mode='sketch'",
        "FSDP1 or DeepSpeed ZeRO-3 shards the parameters in a way that hides them from their layers. Use FSDP2",
        "model has no readable layer: give one of stream_ids per row of the inputs",
    ]
    for result in results:
        assert all(message in error for message, error in zip(told, result["errors"], strict=True))
