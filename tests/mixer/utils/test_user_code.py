"""Who wrote a function is told by what runs, not by the name of a module, which decorators copy."""

import functools
from typing import Any

import pytest
import torch
from transformers import Trainer, default_data_collator
from trl import SFTTrainer

from mixer import MixingTrainer
from mixer.utils.user_code import is_user_code


class Mine(MixingTrainer):
    def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
        return super().compute_loss(*args, **kwargs)

    @functools.wraps(Trainer.training_step)
    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        return super().training_step(*args, **kwargs)


@pytest.mark.parametrize(
    ("code", "user_computes_loss"),
    [
        (Trainer.training_step, False),
        (SFTTrainer.compute_loss, False),
        (Mine.log, False),
        (torch.no_grad()(Trainer.compute_loss), False),
        (functools.partial(default_data_collator, return_tensors="pt"), False),
        (Mine.compute_loss, True),
        (Mine.training_step, True),
        (functools.partial(Mine.compute_loss), True),
        (torch.no_grad()(Mine.compute_loss), True),
        (Mine, True),
        (lambda rows: rows, True),
    ],
)
def test_decorators_and_partials_change_no_author(code: Any, user_computes_loss: bool) -> None:
    assert is_user_code(code) == user_computes_loss
