"""Losses that look like a mean only as long as all terms are alike: later steps find them out, and say so once."""

from pathlib import Path
from typing import Any

import pytest
from torch import Tensor
from transformers import TrainerCallback

from tests.losses import hard_half, padded, ragged, small_model, token_mean
from tests.mixer.trainer.runs import train

_ROWS = ragged(24, 1)


class Late(TrainerCallback):
    """A mean over tokens, to which another term is added from a step on."""

    __qualname__ = "late"

    def __init__(self, step: int):
        self.step, self.is_on = step, False

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.is_on = state.global_step + 1 >= self.step

    def __call__(self, outputs: Any, labels: Tensor, num_items_in_batch: Any = None) -> Tensor:
        loss = token_mean(outputs, labels)
        return loss + hard_half(outputs, labels) if self.is_on else loss


def _told(folder: Path, loss: Any, caplog: pytest.LogCaptureFixture, **changes: Any) -> list[str]:
    own = {"per_device_train_batch_size": 3, "max_steps": 34, "learning_rate": 3e-2, "optim": "adamw_torch", **changes}
    own |= {"callbacks": [loss] if isinstance(loss, TrainerCallback) else [], "data_collator": padded}
    data = {"a": _ROWS[:10], "b": _ROWS[10:]}
    train(folder, small_model(1e-4), train_dataset=data, batch_size=12, compute_loss_func=loss, **own)
    messages = [record.getMessage() for record in caplog.records]
    return [message for message in messages if "cannot be seen" in message]


def test_a_late_term_is_told_in_the_next_step(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert not _told(tmp_path / "before", Late(10), caplog, max_steps=10)
    said = _told(tmp_path / "run", Late(10), caplog, max_steps=11)
    assert len(said) == 1
