"""What each rank does in the tests of the gradient probe; `torchrun ... probe_worker.py FOLDER`."""

import contextlib
import copy
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel

from mixer.gradients.probe import GradientProbe
from mixer.policies.gradient_statistics import GradientStatistics
from tests.mixer.gradients.probe.cases import Mlp, build, vector_case
from tests.mixer.gradients.probe.reference import Case, expected_of
from tests.ranks.launch import end_with, message_of

NAMES = ("llama-tied", "gpt2", "mlp")
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


def _whole_gradients(model: nn.Module) -> Tensor:
    gradients = [one.grad for one in model.parameters() if one.grad is not None]
    whole = [one.full_tensor() if isinstance(one, torch.distributed.tensor.DTensor) else one for one in gradients]
    return torch.cat([one.flatten() for one in whole])


def _distance(model: nn.Module, twin: nn.Module) -> float:
    """Of the gradients, relative to those of a plain backward on one rank."""
    found, expected = _whole_gradients(model), _whole_gradients(twin)
    return float((found - expected).norm() / expected.norm())


def on_one_rank(case: Case) -> dict[str, Any]:
    probe = GradientProbe(case.model, 3, "sketch", sketch_size=6, world_size=1)
    return {"sketch": as_lists(case.probed(probe)), "exact": as_lists(expected_of(case))}


def with_ddp(name: str) -> dict[str, Any]:
    case = build(name)
    twin = copy.deepcopy(case.model)
    case.loss(model=twin).backward()
    rows, results = own_rows(case), on_one_rank(case)
    for number, parts in enumerate(([rows], [rows[:1], rows[1:3], rows[3:]])):
        for mode, options in (("sketch", {"sketch_size": 6}), ("exact", {"exact_accumulate": True})):
            case.model.zero_grad()
            model = DistributedDataParallel(case.model)
            found = run(case, model, GradientProbe(model, 3, mode, **options), parts)
            results[f"{mode}-{number}"] = {**found, "distance": _distance(model.module, twin)}
    return results


def with_fsdp(name: str) -> dict[str, Any]:
    case = build(name)
    twin = copy.deepcopy(case.model)
    case.loss(model=twin).backward()
    rows, results = own_rows(case), on_one_rank(case)
    case.model.zero_grad()
    mesh = init_device_mesh("cpu", (2,))
    for layer in case.model.model.layers if name.startswith("llama") else case.model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(case.model, mesh=mesh)
    probe = GradientProbe(case.model, 3, "sketch", sketch_size=6)
    found = run(case, case.model, probe, [rows[:2], rows[2:]])
    results["sketch-0"] = {**found, "distance": _distance(case.model, twin), "coverage": probe.coverage}
    return results


def with_fsdp_in_half_precision() -> dict[str, Any]:
    """Of a checkpointed model whose layers FSDP runs in bfloat16."""
    case = build("llama-tied")
    rows, results = own_rows(case), on_one_rank(case)
    case.model.zero_grad()
    case.model.gradient_checkpointing_enable()
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    mesh = init_device_mesh("cpu", (2,))
    for layer in case.model.model.layers:
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    fully_shard(case.model, mesh=mesh, mp_policy=policy)
    probe = GradientProbe(case.model, 3, "sketch", sketch_size=6)
    return {"found": run(case, case.model, probe, [rows]), "expected": results["sketch"], "coverage": probe.coverage}


def of_one_stream_each() -> dict[str, Any]:
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


def one_rank_cannot_read() -> dict[str, Any]:
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


def errors() -> list[str]:
    """Of an exact probe, of whole gradients of a sharded model, of the sharding before FSDP2, without a backward."""
    sharded = nn.Sequential(nn.Linear(4, 4))
    fully_shard(sharded, mesh=init_device_mesh("cpu", (2,)))
    return [
        message_of(lambda: GradientProbe(nn.Linear(2, 2), 2)),
        message_of(lambda: GradientProbe(sharded, 2, "sketch", homogeneous=True)),
        message_of(lambda: GradientProbe(FullyShardedDataParallel(nn.Linear(4, 4), device_id="cpu"), 2, "sketch")),
        message_of(_backward_on_the_first_rank_only),
    ]


def main() -> None:
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    results = {
        "ddp": {name: with_ddp(name) for name in NAMES},
        "fsdp": {name: with_fsdp(name) for name in ("llama", "mlp", "llama-tied")},
        "half": with_fsdp_in_half_precision(),
        "of_one_stream_each": of_one_stream_each(),
        "one_rank_cannot_read": one_rank_cannot_read(),
        "errors": errors(),
    }
    end_with(results, Path(sys.argv[1]), "probe")


if __name__ == "__main__":
    main()
