"""Losses and gradients that are not finite: what policies remember, and steps that are skipped and told."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import TrainerCallback

from mixer import MixingTrainer
from mixer.policies.registry import built_in_policies
from mixer.schedules import LossChange
from mixer.trainer.method import Method
from mixer.trainer.step import NonFiniteLossError
from tests.helpers import weights_of
from tests.mixer.comparing import Tagger, build, streams
from tests.mixer.trainer.runs import logged, train
from tests.mixer.trainer.test_every_policy_trains import MAKERS

SICK = (2, 3)  # steps


class Sick(Tagger):
    is_sick = False
    value = math.nan

    def forward(self, input_ids: Tensor, labels: Tensor, attention_mask: Tensor | None = None) -> dict[str, Tensor]:
        found = super().forward(input_ids, labels, attention_mask)
        if not (self.is_sick and self.training):
            return found
        are_meant = (input_ids % 7 == 3).any(dim=1)
        logits = torch.where(are_meant[:, None, None], found["logits"] * self.value, found["logits"])
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
        return {"loss": loss, "logits": logits}


class MakesSick(TrainerCallback):
    def on_step_begin(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        getattr(model, "module", model).is_sick = state.global_step + 1 in SICK


# Policies that remember losses, gradients, evaluations.
@pytest.mark.parametrize(
    ("name", "nonfinite", "value"),
    [
        *((name, "skip", math.nan) for name in ("LossChange", "GradNorm", "DWA", "SkillIt", "ODM")),
        *(("DWA", "warn", value) for value in (math.nan, math.inf)),
    ],
)
def test_policies_and_schedules_get_over_them(name, nonfinite, value, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(Sick, "value", value)
    policy = MAKERS[name]() if name in MAKERS else built_in_policies()[name]()
    decisions, update = [], policy.update
    monkeypatch.setattr(policy, "update", lambda observation: decisions.append(update(observation)) or decisions[-1])
    args = {"max_steps": 7, "eval_strategy": "steps", "eval_steps": 1, "learning_rate": 0.05}
    options: dict[str, Any] = {"batch_size": LossChange(initial=9, minimum=4, maximum=20), "nonfinite": nonfinite}
    trainer = build(tmp_path, policy, Sick(), args=args, eval_dataset=streams(), callbacks=[MakesSick()], **options)
    trainer.train()
    assert torch.isfinite(weights_of(trainer.model)).all()
    json.dumps(trainer.mixing.state_dict(), allow_nan=False)
    assert trainer.ledger.clock()["batch_size"].between(4, 20).all()
    none = np.zeros(0)
    made = [np.append(own.weights, none if own.loss_weights is None else own.loss_weights) for own in decisions]
    assert len(made) == 7
    assert np.isfinite(np.concatenate(made)).all()
    rows = trainer.ledger.to_pandas()
    assert set(rows[~np.isfinite(rows["loss"]) & (rows["items"] > 0)]["step"]) == set(SICK)
    assert np.ptp(made[SICK[-1] :], axis=0).max() > 1e-9  # it goes on learning


class _Distance(nn.Module):
    """The mean distance of rows to a point; the root has no gradient where a row lies on it."""

    def __init__(self) -> None:
        super().__init__()
        self.point = nn.Parameter(torch.zeros(3))

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        moved = x + self.point * (x != 0).any(dim=1, keepdim=True)  # a row of zeros is always at the root's edge
        return {"loss": (moved.square().sum(dim=1).sqrt() * labels).mean(), "logits": moved}


def _rows(*bad: int, size: int = 12) -> list[dict[str, torch.Tensor]]:
    x = torch.randn(size, 3, generator=torch.Generator().manual_seed(0))
    x[list(bad)] = 0.0
    return [{"x": row, "labels": torch.ones(())} for row in x]


def _train(folder: Path, *bad: int, model: Any = None, own: Any = None, **options: Any) -> MixingTrainer:
    defaults = {"per_device_train_batch_size": 2, "max_steps": 12, "optim": "adamw_torch", "weight_decay": 0.1}
    data = {"good": _rows(), "bad": _rows(*bad)} if own != {} else {"bad": _rows(*bad)}
    options = {**defaults, "remove_unused_columns": False, **options, **(own or {})}
    return train(folder, model or _Distance(), train_dataset=data, **options)


@pytest.mark.parametrize("nonfinite", ["warn", "skip"])
@pytest.mark.parametrize("max_grad_norm", [0.0, 1.0])
def test_a_step_is_skipped_and_named_with_its_streams(nonfinite, max_grad_norm, tmp_path, caplog) -> None:
    options = {"max_grad_norm": max_grad_norm, "save_strategy": "steps", "save_steps": 1, "save_total_limit": 2}
    trainer = _train(tmp_path, 5, own={"nonfinite": nonfinite}, **options)
    norms = logged(trainer, "grad_norm")
    [place] = [number for number, norm in enumerate(norms, 1) if not math.isfinite(norm)]
    said = [record.getMessage() for record in caplog.records if "is skipped" in record.getMessage()]
    assert len(said) == 1
    assert said[0].startswith(f"Step {place} is skipped: the gradient of ['good', 'bad'] is not finite")
    assert all(math.isfinite(loss) for loss in logged(trainer, "loss"))
    assert torch.isfinite(weights_of(trainer.model)).all()
    saved = [load_file(path)["point"] for path in tmp_path.glob("checkpoint-*/model.safetensors")]
    assert len(saved) == 2
    assert all(torch.isfinite(weights).all() for weights in saved)


def test_the_other_steps_are_those_of_a_plain_loop(tmp_path: Path) -> None:
    """Steps without the one at fault, by torch alone."""
    batches: list[torch.Tensor] = []

    class Noting(_Distance):
        def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
            if torch.is_grad_enabled():
                batches.append(x)
            return super().forward(x, labels)

    options = {"per_device_train_batch_size": 3, "max_steps": 4, "learning_rate": 0.1}
    trainer = _train(tmp_path, 5, model=Noting(), own={}, lr_scheduler_type="constant", **options)
    plain = _Distance()
    optimizer = torch.optim.AdamW(plain.parameters(), lr=0.1, weight_decay=0.1)
    for x in batches:
        plain.zero_grad()
        plain(x, torch.ones(len(x)))["loss"].backward()
        if torch.isfinite(plain.point.grad).all():
            optimizer.step()
    torch.testing.assert_close(trainer.model.point, plain.point)


def test_it_raises_before_the_step(tmp_path: Path) -> None:
    model = _Distance()
    with pytest.raises(NonFiniteLossError, match=r"Step \d: the gradient of \['good', 'bad'\]"):
        _train(tmp_path, *range(12), model=model, own={"nonfinite": "raise"})
    assert torch.equal(weights_of(model), torch.zeros(3))


@pytest.mark.parametrize("nonfinite", ["warn", "skip"])
def test_too_many_in_a_row_end_the_run(nonfinite: str, tmp_path: Path) -> None:
    with pytest.raises(NonFiniteLossError, match="Step 10 is the 10th skipped in a row"):
        _train(tmp_path, *range(12), own={"nonfinite": nonfinite}, max_steps=30)


class _Term(Method):
    name = "own term"

    def term(self, trained: Any) -> Any:
        return (trained.output["logits"] * 0.0).square().sum().sqrt()


def test_a_term_of_a_method_is_named(tmp_path: Path) -> None:
    with pytest.raises(NonFiniteLossError, match=r"terms of the methods \['own term'\]"):
        _train(tmp_path, own={"nonfinite": "raise", "methods": [_Term()]})


class _Poisons(TrainerCallback):
    def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        if state.global_step == 4:
            model.point.data[1] = math.nan


def test_weights_that_are_not_finite_are_never_saved(tmp_path: Path) -> None:
    options = {"save_strategy": "steps", "save_steps": 2, "save_total_limit": 1}
    with pytest.raises(RuntimeError, match=r"After step 4 .*'point'"):
        _train(tmp_path, own={"callbacks": [_Poisons()]}, **options)
    [kept] = tmp_path.glob("checkpoint-*")
    assert kept.name == "checkpoint-2"
    assert torch.isfinite(load_file(kept / "model.safetensors")["point"]).all()
