"""Policies that fail: no checkpoint is written that lacks what they would have decided."""

from pathlib import Path
from typing import Any

import pytest

from mixer import MixingTrainer
from tests.mixer.trainer.checkpointing.test_resume import Whole, _names, assert_same, build, end_of


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
