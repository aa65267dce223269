"""A model that fails on a micro-batch, on a device that gives nothing back any more."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from mixer import MixingTrainer
from tests.helpers import Tokens, arguments, build_model


def test_what_is_asked_of_a_broken_device_does_not_hide_the_models_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> Any:
        raise RuntimeError("device-side assert triggered")

    model = build_model("gpt2")
    trainer = MixingTrainer(
        model, arguments(tmp_path, max_steps=1), train_dataset={"a": Tokens(8, 1), "b": Tokens(8, 2)}
    )
    monkeypatch.setattr(model, "forward", lambda *_, **__: [][0])
    monkeypatch.setattr("mixer.trainer.losses.unfit_rows", fail)
    with pytest.raises(IndexError) as caught:
        trainer.train()
    assert any("stream 'a': samples" in note for note in caught.value.__notes__)


class _Normalised(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.layer = nn.BatchNorm1d(2), nn.Linear(2, 1)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        logits = self.layer(self.norm(x)).squeeze(-1)
        return {"loss": nn.functional.mse_loss(logits, labels), "logits": logits}


def test_batch_normalisation_of_one_row_is_said_with_its_way_out(tmp_path: Path) -> None:
    rows = [{"x": torch.randn(2), "labels": torch.zeros(())} for _ in range(9)]
    args = arguments(tmp_path, max_steps=4, per_device_train_batch_size=4)
    trainer = MixingTrainer(_Normalised(), args, train_dataset={"a": rows, "b": rows}, batch_size=5)
    with pytest.raises(ValueError, match="more than 1 value per channel") as caught:
        trainer.train()
    assert any("dataloader_drop_last=True" in note for note in caught.value.__notes__)
