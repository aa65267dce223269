"""Policies of a user's own: what they remember is theirs, may begin as something else, and they may fail."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mixer import Floor, MixingTrainer
from mixer.policies.contract import Decision, Mixture, Observation, Policy
from tests.helpers import weights_of
from tests.mixer.trainer import runs
from tests.mixer.trainer.checkpointing.test_resume import Whole, _names, assert_same, build, end_of


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
    whole, resumed = (
        runs.train(
            tmp_path,
            resume=checkpoint,
            mixing=Floor(Average(), 0.05) if is_wrapped else Average(),
            max_steps=4,
            save_strategy="steps",
            save_steps=2,
        )
        for checkpoint in (None, tmp_path / "checkpoint-2")
    )
    assert resumed.mixing.weights == whole.mixing.weights
    assert weights_of(resumed.model).tolist() == weights_of(whole.model).tolist()


def failing(trainer: MixingTrainer, step: int) -> MixingTrainer:
    control: Any = trainer._parts.run.options.policy
    update = control.update

    def updated(observation: Any) -> Any:
        if observation.step == step:
            raise ArithmeticError("lost its way")
        return update(observation)

    control.update = updated
    return trainer


@pytest.mark.parametrize(("step", "left"), [(4, []), (5, ["checkpoint-4"])])
def test_no_checkpoint_lacks_what_a_policy_that_failed_would_have_decided(
    tmp_path: Path, step: int, left: list[str], whole: Whole
) -> None:
    with pytest.raises(ArithmeticError, match="lost its way"):
        failing(build(tmp_path), step).train()
    assert _names(tmp_path) == left
    again = build(tmp_path)
    again.train(resume_from_checkpoint=bool(left))
    assert_same(end_of(again), whole("steps")[0])


def test_a_policy_that_fails_after_the_last_step_rules_nothing_any_more(tmp_path: Path) -> None:
    failing(build(tmp_path, max_steps=4), 4).train()
    assert _names(tmp_path) == ["checkpoint-4"]
