"""Runs whose batch size changes, cut off after some step and gone on with: they end as if nobody had cut them off."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import TrainerCallback

from mixer import Budget, MixingTrainer, schedules
from tests.helpers import Tokens, weights_of
from tests.mixer.trainer import runs


class Acting(TrainerCallback):
    def __init__(self, sizes: dict[int, int | None], stops: tuple[int, ...]):
        self.sizes, self.stops = sizes, stops
        self.trainer: Any = None

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step in self.sizes:
            self.trainer.mixing.set_batch_size(self.sizes[state.global_step])
        if state.global_step in self.stops:
            control.should_epoch_stop = True


def growing(step: int, size: int) -> int:
    return 3 + 2 * step


# What each run does, and the steps after which it is cut off; negative ones are counted from its end.
CASES: dict[str, tuple[dict[str, Any], list[int]]] = {
    "larger by hand": ({"sizes": {2: 9, 4: None}}, [3]),
    "a budget in samples": ({"batch_size": growing, "budget": Budget(samples=33)}, [2]),
    "the rest is dropped": ({"sizes": {3: 12}, "num_train_epochs": 3, "dataloader_drop_last": True}, [3, -1]),
    "epochs are stopped": ({"batch_size": growing, "stops": (2, 5), "num_train_epochs": 4}, [2, 5]),
    "Seesaw": ({"batch_size": schedules.Seesaw(maximum=16), "num_train_epochs": 3}, [5]),
}


def make(folder: Path, case: str) -> tuple[MixingTrainer, Acting]:
    saved = {"save_strategy": "steps", "save_steps": 1, "optim": "adamw_torch"}
    sized = {"max_steps": -1, "num_train_epochs": 2, "per_device_train_batch_size": 4}
    options = {"batch_size": None, **saved, **sized, **CASES[case][0]}
    acting = Acting(options.pop("sizes", {}), options.pop("stops", ()))
    acting.trainer = runs.make(folder, callbacks=[acting], train_dataset=Tokens(20, 1), **options)
    return acting.trainer, acting


@pytest.mark.parametrize("case", CASES)
def test_it_ends_as_if_nobody_had_cut_it_off(tmp_path: Path, case: str) -> None:
    whole, acting = make(tmp_path / "whole", case)
    whole.train()
    steps = whole.state.global_step
    for step in [cut if cut > 0 else steps + cut for cut in CASES[case][1]]:
        folder = tmp_path / f"cut-{step}"
        shutil.copytree(tmp_path / "whole", folder)
        for later in range(step + 1, steps + 1):
            shutil.rmtree(folder / f"checkpoint-{later}")
        resumed, _ = make(folder, case)
        # What a callback set after the checkpoint was written is gone with the process: it is set again.
        if step in acting.sizes:
            resumed.mixing.set_batch_size(acting.sizes[step])
        resumed.train(resume_from_checkpoint=True)
        assert resumed.state.global_step == steps
        assert resumed.state.epoch == whole.state.epoch
        assert resumed.state.num_train_epochs == whole.state.num_train_epochs
        assert resumed.ledger.clock().equals(whole.ledger.clock())
        assert torch.equal(weights_of(resumed.model), weights_of(whole.model))
