"""Losses of one stream that are not finite for some steps: what each policy remembers of them, and schedules."""

import json
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import TrainerCallback

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
