"""Runs whose batch size changes, cut off after some step and gone on with: they end as if nobody had cut them off."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import TrainerCallback

from mixer import Budget, MixingTrainer, schedules
from tests.helpers import Tokens, arguments, build_model, weights_of


class Acting(TrainerCallback):
    """Sets sizes, or stops epochs, after some steps, and keeps what happened."""

    def __init__(self, sizes: dict[int, int | None], stops: tuple[int, ...]):
        self.sizes, self.stops = sizes, stops
        self.trainer: Any = None
        self.events: list[tuple[str, int, float]] = []

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        if state.global_step in self.sizes:
            self.trainer.mixing.set_batch_size(self.sizes[state.global_step])
        if state.global_step in self.stops:
            control.should_epoch_stop = True
        return control

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.events.append(("epoch", state.global_step, state.epoch))

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.events.append(("evaluate", state.global_step, state.epoch))


CASES: dict[str, dict[str, Any]] = {
    "smaller by hand": {"sizes": {2: 1}},
    "larger by hand": {"sizes": {2: 9, 4: None}},
    "smaller by a function": {
        "batch_size": lambda: schedules.Function(lambda step, size: max(2, 10 - 2 * step), initial=10)
    },
    "a budget in samples": {"batch_size": lambda: lambda step, size: 3 + 2 * step, "budget": Budget(samples=33)},
    "parts of an epoch": {"batch_size": lambda: lambda step, size: 3 + 2 * step, "num_train_epochs": 1.5},
    "the rest is dropped": {"sizes": {3: 12}, "num_train_epochs": 3, "dataloader_drop_last": True},
    "the rest is dropped by a schedule": {
        "batch_size": lambda: lambda step, size: 4 + 3 * step,
        "num_train_epochs": 3,
        "dataloader_drop_last": True,
    },
    "epochs are stopped": {"stops": (2,), "num_train_epochs": 3},
    "epochs of changing batches are stopped": {
        "batch_size": lambda: lambda step, size: 3 + step,
        "stops": (2, 5),
        "num_train_epochs": 4,
    },
    "epochs are stopped in a budget of steps": {"stops": (2,), "max_steps": 9},
    "the root": {
        "batch_size": lambda: schedules.Ramp(16, 40, unit="samples", initial=4, learning_rate="sqrt"),
        "lr_scheduler_type": "cosine",
        "warmup_steps": 2,
    },
    "Seesaw": {"batch_size": lambda: schedules.Seesaw(maximum=16), "num_train_epochs": 3},
}


def make(folder: Path, case: str) -> tuple[MixingTrainer, Acting]:
    options = dict(CASES[case])
    make_size: Callable[[], Any] = options.pop("batch_size", lambda: None)
    acting = Acting(options.pop("sizes", {}), options.pop("stops", ()))
    budget = options.pop("budget", None)
    defaults = {
        "max_steps": -1,
        "num_train_epochs": 2,
        "per_device_train_batch_size": 4,
        "save_strategy": "steps",
        "save_steps": 1,
        "eval_strategy": "epoch",
        "optim": "adamw_torch",
    }
    trainer = MixingTrainer(
        build_model("llama"),
        arguments(folder, **{**defaults, **options}),
        train_dataset=Tokens(20, 1),
        eval_dataset=Tokens(4, 9),
        batch_size=make_size(),
        budget=budget,
        callbacks=[acting],
    )
    acting.trainer = trainer
    return trainer, acting


@pytest.mark.parametrize("case", CASES)
def test_it_ends_as_if_nobody_had_cut_it_off(tmp_path: Path, case: str) -> None:
    whole, acting = make(tmp_path / "whole", case)
    whole.train()
    steps = whole.state.global_step
    for step in sorted({2, 3, 5, steps - 1, steps})[list(CASES).index(case) % 2 :: 2]:  # each in every other case
        folder = tmp_path / f"cut-{step}"
        shutil.copytree(tmp_path / "whole", folder)
        for later in range(step + 1, steps + 1):
            shutil.rmtree(folder / f"checkpoint-{later}")
        resumed, acted = make(folder, case)
        # What a callback set after the checkpoint was written is gone with the process: it is set again.
        if step in acting.sizes:
            resumed.mixing.set_batch_size(acting.sizes[step])
        resumed.train(resume_from_checkpoint=True)
        assert resumed.state.global_step == steps
        assert resumed.state.epoch == whole.state.epoch
        assert resumed.state.num_train_epochs == whole.state.num_train_epochs
        assert resumed.ledger.clock().equals(whole.ledger.clock())
        assert torch.equal(weights_of(resumed.model), weights_of(whole.model))
        # At a cut the end of the epoch may have been left over.
        assert acted.events == [event for event in acting.events if event[1] > step or event in acted.events[:2]]


def test_a_size_set_by_hand_needs_a_sample_a_rank(tmp_path: Path) -> None:
    from mixer.mixture.batch_size import BatchSize

    alone = BatchSize(schedules.Constant(), 8)
    alone.set(1)
    with pytest.raises(ValueError, match="the batch size that was saved: 1 samples in all are fewer than the 2 ranks"):
        BatchSize(schedules.Constant(), 8, world_size=2).load_state_dict(alone.state_dict())


def test_a_function_is_asked_once_for_each_step(tmp_path: Path) -> None:
    asked = []

    def function(step: int, size: int) -> int:
        asked.append(step)
        return 4

    args = arguments(tmp_path, max_steps=3, per_device_train_batch_size=4)
    trainer = MixingTrainer(build_model("llama"), args, train_dataset=Tokens(20, 1), batch_size=function)
    trainer.train()
    assert asked == [0, 1, 2]
    trainer.train()
    assert asked == [0, 1, 2] * 2


def test_a_finished_run_trains_no_further(tmp_path: Path) -> None:
    trainer, _ = make(tmp_path, "a budget in samples")
    trainer.train()
    again, _ = make(tmp_path, "a budget in samples")
    again.train(resume_from_checkpoint=True)
    assert again.mixing.clock.num_samples == 33
    assert torch.equal(weights_of(again.model), weights_of(trainer.model))
