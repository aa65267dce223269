"""Signal and noise of the gradient on two ranks."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from mixer import MixingTrainer, schedules
from mixer.gradients.rank_noise import RankNoise, noise_of_ranks
from mixer.measurements import GradientNoise, Noise
from mixer.measurements.hooks.rank_noise import NoiseBetweenRanks
from tests.helpers import weights_of
from tests.mixer.trainer.runs import make
from tests.ranks.warm import Results, launched

SIZE = 6
# Samples by step, rank and micro-batch; as many micro-batches on both ranks.
EVEN = [[[3], [3]], [[2], [1]]]
SEVERAL = [[[3], [2]], [[2, 2, 1], [2, 1, 0]], [[3, 1], [2, 2]], [[1, 0], [4, 4]]]
VIEWS, UNUSED = {"gradient_as_bucket_view": True}, {"find_unused_parameters": True}
DDP_OPTIONS: dict[str, tuple[dict[str, Any], dict[str, Any], Any]] = {
    "plain": ({}, {}, SEVERAL),
    "small buckets in views": ({"bucket_cap_mb": 1e-4, **VIEWS}, {}, SEVERAL),
    "unused parameters": (UNUSED, {"skips": True}, SEVERAL),
    "unused parameters in views": ({**UNUSED, **VIEWS}, {"skips": True}, SEVERAL),
    "static graph": ({"static_graph": True}, {}, SEVERAL),  # torch wants its first step in one go
    "checkpointing": ({}, {"reentrant": False}, SEVERAL),
    "reentrant checkpointing": ({}, {"reentrant": True}, SEVERAL),
    "reentrant checkpointing, static graph": ({"static_graph": True}, {"reentrant": True}, EVEN),
}


class _Layers(nn.Module):
    """Layers, of which the second is passed by if the first row says so."""

    def __init__(self, reentrant: bool | None = None, skips: bool = False):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(SIZE, SIZE) for _ in range(4))
        self.reentrant, self.skips = reentrant, skips

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        values = inputs.clone().requires_grad_()
        for number, layer in enumerate(self.layers):
            if self.skips and number == 1 and inputs[0, 0] > 0:
                continue
            checkpointed = partial(checkpoint, layer, use_reentrant=self.reentrant)
            values = torch.tanh(layer(values) if self.reentrant is None else checkpointed(values))
        return values.square().sum(dim=1)


def by_hand(own_sum: torch.Tensor, own_count: int, samples_per_item: float = 1.0) -> list[float] | None:
    """Signal and noise, of a sample, by both ranks' sums of their items' gradients.

    `E||Σz||² = n² signal + n noise` and `E Σ||z||² = Σs² signal + n noise`, solved as they stand; `None` of one rank.
    """
    own = torch.cat([own_sum.double(), torch.tensor([float(own_count)], dtype=torch.float64)])
    every = [torch.empty_like(own) for _ in range(dist.get_world_size())]
    dist.all_gather(every, own)
    parts, counts = torch.stack(every)[:, :-1], torch.stack(every)[:, -1]
    total = counts.sum()
    if counts.max() == total:
        return None
    equations = torch.stack([torch.stack([total**2, total]), torch.stack([counts.square().sum(), total])])
    measured = torch.stack([parts.sum(0).square().sum(), parts.square().sum()])
    signal, noise = torch.linalg.solve(equations, measured).tolist()
    return [signal, noise * samples_per_item]


def difference(found: Any, expected: list[float] | None) -> float:
    """Largest difference of an estimate from one by hand, relative to the larger of both numbers."""
    if found is None or expected is None:
        return 0.0 if found is expected else float("inf")
    differences = abs(found.squared_norm - expected[0]), abs(found.variance - expected[1])
    return max(differences) / max(abs(value) for value in expected)


def _differences(options: dict[str, Any], layers: dict[str, Any], sizes: list[list[list[int]]]) -> list[float]:
    torch.manual_seed(0)
    inner, rank, world_size = _Layers(**layers), dist.get_rank(), dist.get_world_size()
    twin, unused = _Layers(skips=inner.skips), {"allow_unused": True, "materialize_grads": True}
    twin.load_state_dict(inner.state_dict())
    model = DistributedDataParallel(inner, **options)
    noise, generator, differences = RankNoise(model), torch.Generator().manual_seed(rank), []
    for batch in sizes:
        total, own_sum = sum(sum(own) for own in batch), torch.zeros(4 * (SIZE * SIZE + SIZE))
        model.zero_grad()
        for number, count in enumerate(batch[rank]):
            is_last = number == len(batch[rank]) - 1
            inputs = torch.randn(max(count, 1), SIZE, generator=generator)
            inputs[0, 0] = inputs[0, 0].abs() * (1 if is_last == (rank == 0) else -1)  # each rank skips at another time
            of_rows = torch.autograd.grad(twin(inputs)[:count].sum(), list(twin.parameters()), **unused)
            own_sum += torch.cat([gradient.flatten() for gradient in of_rows])
            with noise.listening() if is_last else model.no_sync():
                # A rank without a sample runs one that weighs nothing.
                (model(inputs).sum() * (world_size / total if count else 0.0)).backward()
        measured = noise.measure(sum(batch[rank]), 1.0, torch.device("cpu"))
        dist.all_reduce(measured)
        found, expected = noise_of_ranks(measured.tolist(), world_size), by_hand(own_sum, sum(batch[rank]))
        differences.append(difference(found, expected))
    return differences


def under_ddp(folder: Path) -> dict[str, list[float]]:
    """Differences from the estimates by hand, by what DDP is told, one a step."""
    return {name: _differences(*options) for name, options in DDP_OPTIONS.items()}


class _Recording(schedules.NoiseScale):
    def __init__(self, **bounds: Any):
        super().__init__(decay=0.5, interval_steps=2, powers_of_two=False, **bounds)
        self.shown: list[Noise | None] = []

    def update(self, observation: schedules.BatchObservation) -> schedules.BatchDecision:
        self.shown.append(observation[GradientNoise])
        return super().update(observation)


def _trainer(folder: Path, model: nn.Module | None = None, **changes: Any) -> MixingTrainer:
    options = {"max_steps": -1, "num_train_epochs": 2, "per_device_train_batch_size": 2, **changes}
    size = _Recording(initial=9, minimum=5, maximum=16)
    return make(folder, model or "llama", mixing="Proportional", batch_size=size, **options)


def _sum_of_gradients(trainer: MixingTrainer, batch: Any) -> tuple[torch.Tensor, int, int]:
    """Adds up the gradients of this rank's samples, each by a backward of its own; gives their items too."""
    model, num_items = trainer.model, trainer._parts.run.step.num_items
    parameters = list(model.parameters())
    total, count, items = torch.zeros(sum(parameter.numel() for parameter in parameters)), 0, 0
    for micro in batch.micro_batches:
        for row in range(0 if micro.is_padding else len(micro.stream_ids)):
            inputs = {name: values[row : row + 1] for name, values in micro.inputs.items()}
            loss = model(**inputs, num_items_in_batch=torch.tensor(num_items)).loss
            gradients = torch.autograd.grad(num_items * loss, parameters)
            total += torch.cat([gradient.flatten() for gradient in gradients])
            count += 1
            items += int(inputs["labels"][:, 1:].ne(-100).sum())
    return total, count, items


def trained(folder: Path) -> dict[str, Any]:
    """A run by the noise: what the schedule saw beside estimates by hand, and what this rank had of each step."""
    trainer, expected, counts = _trainer(folder / "trained", max_grad_norm=1e-3), [], []
    train_step = trainer._parts.steps.train

    def compare(model: nn.Module, batch: Any, num_items: Any = None) -> torch.Tensor:
        own_sum, count, items = _sum_of_gradients(trainer, batch)
        expected.append(by_hand(own_sum, items, batch.plan.total / trainer._parts.run.step.num_items))
        counts.append([count, len(batch.micro_batches)])
        return train_step(model, batch, num_items)

    trainer._parts.steps.train = compare  # type: ignore[method-assign]
    trainer.train()
    shown, hooks = trainer.mixing.schedule.shown, trainer._parts.hooks
    assert all(hook.observe(None) == {} for hook in hooks if isinstance(hook, NoiseBetweenRanks)), "it is not over"
    assert not any(parameter._post_accumulate_grad_hooks for parameter in trainer.model.parameters())
    return {
        "differences": [difference(noise, hand) for noise, hand in zip(shown, expected, strict=True)],
        "counts": counts,
        "shown": [noise and [noise.squared_norm, noise.variance] for noise in shown],
        **_end_of(trainer),
    }


def _end_of(trainer: MixingTrainer) -> dict[str, Any]:
    ledger = trainer.ledger if trainer.is_world_process_zero() else None
    frames = [ledger.clock(), ledger.to_pandas()] if ledger else []
    return {
        "weights": weights_of(trainer.model).tolist(),
        "mixing": trainer.mixing.state_dict(),
        "ledger": [frame.to_json(double_precision=15) for frame in frames],
    }


def resumed(folder: Path) -> list[str]:
    """Names what differs between a run and one that went on from the middle of it."""
    ends = []
    for saved in (None, str(folder / "resumed" / "checkpoint-3")):
        trainer = _trainer(folder / "resumed", save_strategy="steps", save_steps=3, max_grad_norm=1.0)
        trainer.train(resume_from_checkpoint=saved)
        assert trainer.state.global_step - len(trainer.mixing.schedule.shown) == (3 if saved else 0)
        ends.append(_end_of(trainer))
    return [name for name in ends[0] if ends[0][name] != ends[1][name]]


# The first one starts the process group.
results = launched(trained, under_ddp, resumed)


@pytest.mark.parametrize("options", DDP_OPTIONS)
def test_it_is_the_estimate_by_each_sample_s_gradient(results: Results, options: str) -> None:
    for result in results:
        assert max(result["under_ddp"][options]) < 1e-5


def test_a_schedule_sees_it_before_clipping_whatever_the_ranks_have_and_both_decide_alike(results: Results) -> None:
    first, second = (result["trained"] for result in results)
    assert max(first["differences"] + second["differences"]) < 1e-4
    assert any(own[0] != other[0] for own, other in zip(first["counts"], second["counts"], strict=True))
    assert max(num_micro for _, num_micro in first["counts"]) > 2
    for part in ("shown", "mixing", "weights"):
        assert first[part] == second[part]
    assert len(set(json.loads(first["ledger"][0])["batch_size"].values())) > 1


def test_it_goes_on_from_a_checkpoint_as_if_it_had_never_stopped(results: Results) -> None:
    assert [result["resumed"] for result in results] == [[], []]
