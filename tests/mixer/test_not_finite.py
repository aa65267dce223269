"""Losses of one stream that are not finite for some updates: what each policy remembers of them, and schedules."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import TrainerCallback

from mixer import Decision, MixingTrainer, Observation
from mixer.policies.registry import built_in_policies
from tests.helpers import weights_of
from tests.mixer.comparing import Tagger, build, streams
from tests.mixer.test_every_policy_trains import MAKERS, STAY

SICK = (2, 3)  # updates


class Sick(Tagger):
    """A model that gives no finite numbers for some rows while it is sick."""

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


def train(folder: Path, name: str, nonfinite: str, **changes: Any) -> tuple[MixingTrainer, list[Decision]]:
    policy = MAKERS[name]() if name in MAKERS else built_in_policies()[name]()
    decisions: list[Decision] = []
    update = policy.update

    def noted(observation: Observation) -> Decision:
        decisions.append(update(observation))
        return decisions[-1]

    policy.update = noted  # type: ignore[method-assign]
    args = {"max_steps": 7, "eval_strategy": "steps", "eval_steps": 1, "learning_rate": 0.05}
    sets = {"eval_dataset": streams(), "callbacks": [MakesSick()], "nonfinite": nonfinite}
    trainer = build(folder, policy, model=Sick(), args=args, **sets, **changes)
    trainer.train()
    return trainer, decisions


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gc.collect", lambda *_: 0)


@pytest.mark.parametrize("name", sorted(built_in_policies()))
def test_a_policy_gets_over_them(tmp_path: Path, name: str) -> None:
    trainer, decisions = train(tmp_path, name, "skip")
    assert torch.isfinite(weights_of(trainer.model)).all()
    json.dumps(trainer.mixing.state_dict(), allow_nan=False)
    rows = trainer.ledger.to_pandas()
    assert set(rows[rows["loss"].isna() & (rows["items"] > 0)]["step"]) == set(SICK)
    if name not in STAY:
        assert len(decisions) == 7
        values = [getattr(decision, kind) for decision in decisions for kind in ("weights", "loss_weights")]
        assert all(np.isfinite(value).all() for value in values if value is not None)
