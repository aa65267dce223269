"""Models and collators that take a single row train as by the Trainer; what cannot be seen is told."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from transformers import Trainer

from mixer import MixingTrainer
from tests.helpers import arguments, weights_of
from tests.losses import padded, ragged, small_model

_ROWS = ragged(12, 1)


class _OneRow(nn.Module):
    def __init__(self, shows_logits: bool) -> None:
        super().__init__()
        self.inner, self.shows_logits = small_model(), shows_logits

    def forward(self, input_ids: Tensor, attention_mask: Tensor, labels: Tensor) -> dict[str, Tensor]:
        assert len(input_ids) == 1, "a single row"
        logits = self.inner(input_ids=input_ids, attention_mask=attention_mask).logits
        loss = F.cross_entropy(logits[0, :-1], labels[0, 1:])
        return {"loss": loss, "logits": logits} if self.shows_logits else {"loss": loss}


def _one(rows: list[Any]) -> dict[str, Tensor]:
    (one,) = rows
    return padded([one])


def _weights(kind: Any, folder: Path, model: nn.Module, data: Any = _ROWS, collator: Any = _one, **options: Any) -> Any:
    own = {"per_device_train_batch_size": 1, "max_steps": 4, "train_sampling_strategy": "sequential", **options}
    sets = {"per_device_eval_batch_size": 1, "eval_strategy": "steps", "eval_steps": 4}
    args = arguments(folder, **own, **sets)
    kind(model, args, train_dataset=data, eval_dataset=_ROWS[:3], data_collator=collator).train()
    return weights_of(model)


@pytest.mark.parametrize("accumulation", [1, 3])
@pytest.mark.parametrize("shows_logits", [True, False])
def test_a_model_of_one_row_trains_as_by_the_trainer(shows_logits, accumulation, tmp_path, caplog) -> None:
    options = {"gradient_accumulation_steps": accumulation}
    plain = _weights(Trainer, tmp_path / "plain", _OneRow(shows_logits), **options)
    own = _weights(MixingTrainer, tmp_path / "own", _OneRow(shows_logits), **options)
    torch.testing.assert_close(own, plain, rtol=0, atol=1e-7)
    told = [record.getMessage() for record in caplog.records if "loss_reduction" in record.getMessage()]
    assert len(told) == (accumulation > 1 or not shows_logits)  # one row in all is the whole batch
    assert all("_OneRow" in message for message in told)


def test_a_collator_of_one_row_trains_as_by_the_trainer(tmp_path: Path) -> None:
    plain = _weights(Trainer, tmp_path / "plain", small_model())
    torch.testing.assert_close(_weights(MixingTrainer, tmp_path / "own", small_model()), plain, rtol=0, atol=1e-7)
