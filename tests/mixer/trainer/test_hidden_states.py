"""Models that select hidden states see those of the plain Trainer: nothing but the training runs them."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import BertModel, Trainer

from mixer import MixingTrainer
from tests import vision
from tests.helpers import Tokens, _bert_config, arguments


class LastLayers(nn.Module):
    """A classifier on the mean of the last two of three layers, which notes the layers' outputs."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.encoder = BertModel(_bert_config(num_hidden_layers=3), add_pooling_layer=False)
        self.head = nn.Linear(16, 3)
        self.states: list[tuple[Tensor, ...]] = []

    def forward(self, input_ids: Tensor, attention_mask: Tensor, labels: Tensor) -> dict[str, Tensor]:
        found = self.encoder(input_ids, attention_mask, output_hidden_states=True).hidden_states
        if self.training:
            self.states.append(found)
        logits = self.head(torch.stack(found[-2:]).mean(dim=(0, 2)))
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def _trained(kind: Any, folder: Path, model: nn.Module, data: Any) -> Any:
    args = arguments(folder, train_sampling_strategy="sequential", per_device_train_batch_size=4)
    trainer = kind(model, args, train_dataset=data)
    trainer.train()
    return trainer


def test_hidden_states_are_those_of_the_layers(tmp_path: Path) -> None:
    data = Tokens(12, 1, "sequence-classification")
    plain, own = (_trained(kind, tmp_path, LastLayers(), data).model for kind in (Trainer, MixingTrainer))
    assert [len(states) for states in own.states] == [4, 4, 4]
    torch.testing.assert_close(own.states, plain.states, rtol=0, atol=1e-7)


@pytest.mark.parametrize(
    "family", [one if one == "Llava" else pytest.param(one, marks=pytest.mark.full) for one in vision.FAMILIES]
)
def test_a_vision_tower_gives_its_layer(family: str, tmp_path: Path) -> None:
    data = vision.rows_of(family)
    plain, own = (_trained(kind, tmp_path, vision.model_of(family), data) for kind in (Trainer, MixingTrainer))
    losses = [[entry["loss"] for entry in run.state.log_history if "loss" in entry] for run in (plain, own)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)
