"""Runs whose batch size changes, cut off after some step and gone on with: they end as if nobody had cut them off."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import TrainerCallback

from mixer import Budget, MixingTrainer, schedules
from mixer.mixture.batch_size import BatchSize
from tests.helpers import Tokens, weights_of
from tests.mixer.trainer import runs


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


def growing(step: int, size: int) -> int:
    return 3 + 2 * step


# What each run does, and the steps after which it is cut off; negative ones are counted from its end.
CASES: dict[str, tuple[dict[str, Any], list[int]]] = {
    "smaller by hand": ({"sizes": {2: 1}, "num_train_epochs": 1}, [2, -1]),
    "larger by hand": ({"sizes": {2: 9, 4: None}}, [3]),
    "a budget in samples": ({"batch_size": growing, "budget": Budget(samples=33)}, [2, -1]),
    "parts of an epoch": ({"batch_size": growing, "num_train_epochs": 1.5}, [3]),
    "the rest is dropped": ({"sizes": {3: 12}, "num_train_epochs": 3, "dataloader_drop_last": True}, [3, -1]),
    "epochs of changing batches are stopped": (
        {"batch_size": lambda step, size: 3 + step, "stops": (2, 5), "num_train_epochs": 4},
        [2, 5],
    ),
    "epochs are stopped in a budget of steps": ({"stops": (2,), "max_steps": 9}, [2, 3]),
    "the root": (
        {
            "batch_size": schedules.Ramp(16, 40, unit="samples", initial=4, learning_rate="sqrt"),
            "lr_scheduler_type": "cosine",
            "warmup_steps": 2,
        },
        [3],
    ),
    "Seesaw": ({"batch_size": schedules.Seesaw(maximum=16), "num_train_epochs": 3}, [5]),
}
QUICK = ("larger by hand", "the rest is dropped", "epochs of changing batches are stopped", "the root")


def make(folder: Path, case: str) -> tuple[MixingTrainer, Acting]:
    saved = {"save_strategy": "steps", "save_steps": 1, "eval_strategy": "epoch", "optim": "adamw_torch"}
    sized = {"max_steps": -1, "num_train_epochs": 2, "per_device_train_batch_size": 4}
    options = {"batch_size": None, **saved, **sized, **CASES[case][0]}
    acting = Acting(options.pop("sizes", {}), options.pop("stops", ()))
    data = {"train_dataset": Tokens(20, 1), "eval_dataset": Tokens(4, 9)}
    acting.trainer = runs.make(folder, callbacks=[acting], **data, **options)
    return acting.trainer, acting


@pytest.mark.parametrize(
    "case", [case if case in QUICK else pytest.param(case, marks=pytest.mark.full) for case in CASES]
)
def test_it_ends_as_if_nobody_had_cut_it_off(tmp_path: Path, case: str) -> None:
    whole, acting = make(tmp_path / "whole", case)
    whole.train()
    steps = whole.state.global_step
    for step in [cut if cut > 0 else steps + cut for cut in CASES[case][1]]:
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


def test_a_size_set_by_hand_needs_a_sample_a_rank() -> None:
    alone = BatchSize(schedules.Constant(), 8)
    alone.set(1)
    with pytest.raises(ValueError, match="the batch size that was saved: 1 samples in all are fewer than the 2 ranks"):
        BatchSize(schedules.Constant(), 8, world_size=2).load_state_dict(alone.state_dict())


def test_a_function_is_asked_once_for_each_step_and_a_finished_run_trains_no_further(tmp_path: Path) -> None:
    asked = []

    def function(step: int, size: int) -> int:
        asked.append(step)
        return 4

    options = {"train_dataset": Tokens(20, 1), "save_strategy": "steps", "save_steps": 3}
    trainer = runs.make(tmp_path, batch_size=function, **options)
    for _ in range(2):
        trainer.train()
    assert asked == [0, 1, 2] * 2
    again = runs.train(tmp_path, resume=tmp_path / "checkpoint-3", batch_size=function, **options)
    assert again.mixing.clock.num_samples == 12
    assert torch.equal(weights_of(again.model), weights_of(trainer.model))
