"""Losses of one stream that are not finite for some steps: what each policy remembers of them, and schedules."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import TrainerCallback

from mixer import Decision, MixingTrainer, Observation, Uniform
from mixer.policies.registry import built_in_policies
from mixer.schedules import LossChange
from tests.helpers import weights_of
from tests.mixer.comparing import Tagger, build, streams
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


def train(folder: Path, name: str, nonfinite: str) -> tuple[MixingTrainer, list[Decision]]:
    policy = MAKERS[name]() if name in MAKERS else built_in_policies()[name]()
    decisions: list[Decision] = []
    update = policy.update

    def noted(observation: Observation) -> Decision:
        decisions.append(update(observation))
        return decisions[-1]

    policy.update = noted  # type: ignore[method-assign]
    args = {"max_steps": 7, "eval_strategy": "steps", "eval_steps": 1, "learning_rate": 0.05}
    sets = {"eval_dataset": streams(), "callbacks": [MakesSick()], "nonfinite": nonfinite}
    trainer = build(folder, policy, model=Sick(), args=args, **sets)
    trainer.train()
    return trainer, decisions


# Of those that remember losses, gradients, losses after the step, evaluations; what each policy makes of single numbers
# that are none, its own tests say.
@pytest.mark.parametrize("name", ["LossChange", "GradNorm", "FAMO", "DoReMi", "SkillIt", "ODM"])
def test_a_policy_gets_over_them(tmp_path: Path, name: str) -> None:
    trainer, decisions = train(tmp_path, name, "skip")
    assert torch.isfinite(weights_of(trainer.model)).all()
    json.dumps(trainer.mixing.state_dict(), allow_nan=False)
    rows = trainer.ledger.to_pandas()
    assert set(rows[rows["loss"].isna() & (rows["items"] > 0)]["step"]) == set(SICK)
    assert len(decisions) == 7
    none = np.zeros(0)
    made = [np.append(own.weights, none if own.loss_weights is None else own.loss_weights) for own in decisions]
    assert np.isfinite(np.concatenate(made)).all()
    assert np.ptp(made[SICK[-1] :], axis=0).max() > 1e-9  # it goes on learning


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_where_the_model_is_lost_the_policy_is_not(
    value: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Sick, "value", value)
    trainer, decisions = train(tmp_path, "FAMO", "warn")
    assert not torch.isfinite(weights_of(trainer.model)).all()
    json.dumps(trainer.mixing.state_dict(), allow_nan=False)
    assert all(np.isfinite(decision.weights).all() for decision in decisions)


def test_a_schedule_gets_over_them(tmp_path: Path) -> None:
    options: dict[str, Any] = {"callbacks": [MakesSick()], "batch_size": LossChange(initial=9, minimum=4, maximum=20)}
    trainer = build(tmp_path, Uniform(), Sick(), args={"max_steps": 6}, nonfinite="skip", **options)
    trainer.train()
    json.dumps(trainer.mixing.state_dict(), allow_nan=False)
    assert trainer.ledger.clock()["batch_size"].between(4, 20).all()
