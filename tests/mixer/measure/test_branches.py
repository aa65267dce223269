"""Branches of the model during a run."""

import contextlib
from collections import defaultdict
from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import default_data_collator

import mixer
from mixer import MixingTrainer
from mixer.loading.loaded_step import StepCounts, StepResult
from mixer.measure.branch_losses import BranchProbe
from mixer.measurements import Branches, BranchStatistics
from mixer.mixture.clock import Budget, Clock
from mixer.mixture.controller import Mixing
from mixer.mixture.planner import Planner
from mixer.mixture.stream import Stream
from mixer.models.model_branches import AdapterBranches, WeightBranches
from mixer.policies import Uniform
from tests.helpers import Tokens, weights_of
from tests.mixer.comparing import Tagger, Watching, build
from tests.mixer.measure.test_targets import OUTSIDE, train

PLAN = Branches(stages=(0.3, 0.6), num_steps=2, num_mixtures=3)


class Branching(Watching):
    def __init__(self, plan: Branches = PLAN):
        super().__init__(plan)


def by_hand(trainer: MixingTrainer, probe: BranchProbe, mixtures: Sequence[np.ndarray]) -> list[list[float]]:
    """Losses of mixtures of copies that are trained by a copy of the optimizer."""
    start, ends = trainer.model, []
    for stream, seen in enumerate(trainer.mixing.seen.tolist()):
        model, size = deepcopy(start), trainer.mixing.batch_size
        optimizer = deepcopy(trainer.optimizer.optimizer)
        copies = dict(zip(start.parameters(), model.parameters(), strict=True))
        for group, own in zip(optimizer.param_groups, trainer.optimizer.optimizer.param_groups, strict=True):
            group["params"] = [copies[parameter] for parameter in own["params"]]
        state = trainer.optimizer.optimizer.state
        optimizer.state = defaultdict(dict, {copies[p]: deepcopy(own) for p, own in state.items()})
        for number in range(PLAN.num_steps):
            positions = seen + number * size + np.arange(size)
            (micro,) = trainer.auxiliary_passes.samples({stream: positions}, size)
            optimizer.zero_grad()
            model(**micro.inputs)["loss"].backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        ends.append([parameter.detach() for parameter in model.parameters()])
    return [[mixed_loss(start, ends, mixture, target) for target in probe._targets] for mixture in mixtures]


def mixed_loss(start: Any, ends: Sequence[Sequence[Tensor]], mixture: np.ndarray, target: Any) -> float:
    model = deepcopy(start).eval()
    with torch.no_grad():
        for parts in zip(model.parameters(), *ends, strict=True):
            parts[0].copy_(sum(float(share) * end for share, end in zip(mixture, parts[1:], strict=True)))
        rows = [target._rows[index] for index in target._cursor.references(np.arange(target.num_rows)).tolist()]
        return float(model(**default_data_collator(rows))["loss"])


def test_branches_are_trainings_by_hand_and_leave_no_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected, measure = [], BranchProbe._measure

    def both(probe: BranchProbe, step: int, num_steps: int) -> BranchStatistics:
        before = deepcopy((weights_of(trainer.model), trainer.optimizer.state_dict()))
        found = measure(probe, step, num_steps)
        after = (weights_of(trainer.model), trainer.optimizer.state_dict())
        torch.testing.assert_close(after, before, rtol=0.0, atol=0.0)
        expected.append((step, by_hand(trainer, probe, found.mixtures)))
        return found

    monkeypatch.setattr(BranchProbe, "_measure", both)
    policy = Branching()
    args = {"max_steps": 6, "optim": "adamw_torch", "learning_rate": 0.01, "lr_scheduler_type": "constant"}
    args |= {"per_device_train_batch_size": 64, "weight_decay": 0.01}
    options = {"eval_dataset": OUTSIDE, "objective": ["outside", "a"], "model": Tagger(), "batch_size": 12}
    trainer = build(tmp_path, policy, args=args, **options)
    trainer.train()
    seen = [observation[Branches] for observation in policy.seen]
    assert [one is not None for one in seen] == [False, True, False, True, False, False]
    for one, (_, losses) in zip([one for one in seen if one is not None], expected, strict=True):
        assert one.mixtures.shape == (6, 3)  # three branches, their mean, and two draws
        np.testing.assert_allclose(one.mixtures.sum(axis=1), 1.0)
        np.testing.assert_allclose(one.losses, losses, rtol=1e-5)
    assert trainer.ledger.timings().query("0 < probe_seconds < train_seconds")["step"].tolist() == [2, 4]


@pytest.mark.parametrize("adapter_rank", [0, 2])
def test_branching_changes_no_bit_of_the_training(tmp_path: Path, adapter_rank: int) -> None:
    ends = []
    plan = Branches(stages=(0.34,), num_steps=2, num_mixtures=3, adapter_rank=adapter_rank)
    for name, policy in (("plain", mixer.Uniform()), ("branched", Branching(plan))):
        trainer = train(tmp_path / name, policy, model=Tagger(dropout=0.3))
        ends.append(weights_of(trainer.model))
    assert all(torch.equal(one, other) for one, other in zip(*ends, strict=True))
    (seen,) = [o[Branches] for o in policy.seen if o[Branches] is not None]  # type: ignore[attr-defined]
    assert np.ptp(seen.losses, axis=0).min() > 1e-4


def test_adapters_are_mixed_as_their_products_are() -> None:
    torch.manual_seed(0)
    layer, inputs = torch.nn.Linear(3, 2), torch.randn(4, 3)
    branches, plain, products = AdapterBranches(layer, 2, 0.01), layer(inputs), []
    for _ in range(2):
        with branches.training() as (parameters, optimizer):
            for _ in range(3):
                optimizer.zero_grad()
                layer(inputs).square().sum().backward()
                optimizer.step()
            products.append((parameters[1] @ parameters[0]).detach())
    with branches.mixed([0.3, 0.6]):
        mixed = layer(inputs)
    torch.testing.assert_close(mixed, plain + inputs @ (0.3 * products[0] + 0.6 * products[1]).T)
    assert torch.equal(layer(inputs), plain)
    with pytest.raises(ValueError, match="no linear layers"):
        AdapterBranches(torch.nn.Embedding(3, 2), 2, 0.01)


def test_a_failing_branch_leaves_weights_and_optimizer_as_they_were() -> None:
    layer = torch.nn.Linear(3, 2)
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.1)
    layer(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    before = deepcopy((layer.state_dict(), optimizer.state_dict()))
    branches = WeightBranches([*layer.parameters()], optimizer)
    with contextlib.suppress(RuntimeError), branches.training():
        optimizer.step()
        assert optimizer.state_dict()["state"][0]["step"] == 2
        raise RuntimeError("lost")
    torch.testing.assert_close((layer.state_dict(), optimizer.state_dict()), before, rtol=0.0, atol=0.0)


def test_every_stage_comes_once_where_the_batch_grows(tmp_path: Path) -> None:
    policy, args = Branching(), {"max_steps": -1, "num_train_epochs": 1}
    size = mixer.schedules.Ramp(24, 60, initial=4, unit="samples")
    trainer = train(tmp_path, policy, batch_size=size, budget=mixer.Budget(samples=120), args=args)
    branched = [seen.progress for seen in policy.seen if seen[Branches] is not None]
    assert len(branched) == len(PLAN.stages)
    assert trainer.state.global_step < 120 // 4
    for stage, progress in zip(PLAN.stages, branched, strict=True):
        assert stage <= progress < stage + 24 / 120


def test_stages_follow_a_budget_of_labels() -> None:
    mixing = Mixing(
        Planner([Stream(name, range(40)) for name in "ab"], 0),
        Uniform(),
        Clock(4, 80, Budget(labels=100), is_constant=False),
    )
    plan = mixing.next_plan()
    assert plan is not None
    contents = StepCounts(plan.counts, plan.counts, labels=np.array([10, 15]))
    result = StepResult(plan, contents, torch.zeros(3), 0.1, 1.0)
    runs: Any = SimpleNamespace(
        trainer=None, run=SimpleNamespace(mixing=mixing), plan=SimpleNamespace(streams=mixing.planner.streams)
    )
    assert BranchProbe([], runs, Branches())._progress(result) == (0.0, 0.25)


def test_what_has_no_branches_is_refused(tmp_path: Path) -> None:
    options = {"eval_dataset": OUTSIDE, "objective": ["outside"]}
    with pytest.raises(ValueError, match="two or more that are neither iterable nor a memory; there is 1"):
        build(tmp_path, mixer.OPMix(), train_dataset={"a": Tokens(9, 1)}, **options)
    with pytest.raises(ValueError, match="adapter_rank=4 adds adapters by hooks, which a compiled model does not call"):
        build(tmp_path, mixer.OPMix(adapter_rank=4), args={"torch_compile": True}, **options)


def test_a_policy_with_branches_needs_an_objective(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="OPMix needs an objective"):
        build(tmp_path, mixer.OPMix(), args={"max_steps": 2})
