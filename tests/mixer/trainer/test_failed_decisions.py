"""A policy that fails at the step of a checkpoint: none is written that lacks what it would have decided."""

from pathlib import Path
from typing import Any

import pytest

from mixer import MixingTrainer
from mixer.trainer.checkpointing.files import list_checkpoints
from tests.mixer.trainer.checkpointing.test_resume import assert_same, build, end_of


def failing(trainer: MixingTrainer, step: int) -> MixingTrainer:
    control: Any = trainer._parts.run.options.policy
    batch = control.update

    def updated(observation: Any) -> Any:
        if observation.step == step:
            raise ArithmeticError("lost its way")
        return batch(observation)

    control.update = updated
    return trainer


def names(folder: Path) -> list[str]:
    return [checkpoint.name for checkpoint in list_checkpoints(folder)]


class TestFailedDecision:
    @pytest.mark.parametrize(("step", "left"), [(4, []), (5, ["checkpoint-4"])])
    def test_a_run_goes_on_as_if_the_policy_had_not_failed(self, tmp_path: Path, step: int, left: list[str]) -> None:
        whole = build(tmp_path / "whole")
        whole.train()
        with pytest.raises(ArithmeticError, match="lost its way"):
            failing(build(tmp_path / "run"), step).train()
        assert names(tmp_path / "run") == left
        again = build(tmp_path / "run")
        again.train(resume_from_checkpoint=bool(left))
        assert_same(end_of(again), end_of(whole))

    def test_one_that_fails_after_the_last_step_rules_nothing_any_more(self, tmp_path: Path) -> None:
        trainer = failing(build(tmp_path, max_steps=4), 4)
        trainer.train()
        assert names(tmp_path) == ["checkpoint-4"]
