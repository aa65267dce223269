"""Policies of a user's own: what they remember is theirs, and may begin as something else."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mixer import MixingTrainer
from mixer.policies import Floor
from mixer.policies.contract import Decision, Mixture, Observation, Policy
from tests.helpers import Tokens, arguments, build_model, weights_of


class Average(Policy):
    """Goes by an average that is a number until the first step makes a list of it."""

    needs = frozenset({"loss"})

    def start(self, mixture: Mixture) -> Decision:
        self.average: Any = 0.0
        self.longest: dict[str, float] = {}
        return Decision(np.full(len(mixture.names), 1 / len(mixture.names)))

    def update(self, observation: Observation) -> Decision:
        self.average = 0.9 * np.asarray(self.average) + 0.1 * np.nan_to_num(observation.losses)
        self.longest[str(observation.step)] = float(self.average.max())
        return Decision(np.exp(self.average) / np.exp(self.average).sum())

    def state_dict(self) -> dict[str, Any]:
        return {"average": np.asarray(self.average).tolist(), "longest": self.longest}

    def load_state_dict(self, state: Any) -> None:
        super().load_state_dict(state)
        self.average, self.longest = state["average"], dict(state["longest"])


@pytest.mark.parametrize("is_wrapped", [False, True])
def test_a_run_goes_on_though_what_is_remembered_has_another_form_by_then(tmp_path: Path, is_wrapped: bool) -> None:
    def build() -> MixingTrainer:
        streams = {"a": Tokens(32, 1), "b": Tokens(32, 2)}
        args = arguments(tmp_path, max_steps=4, save_strategy="steps", save_steps=2)
        return MixingTrainer(
            build_model("gpt2"), args, train_dataset=streams, mixing=Floor(Average(), 0.05) if is_wrapped else Average()
        )

    whole = build()
    whole.train()
    resumed = build()
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert resumed.mixing.weights == whole.mixing.weights
    assert weights_of(resumed.model).tolist() == weights_of(whole.model).tolist()
