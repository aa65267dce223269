"""Features of samples, for rules that cover a model's feature space."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from replay import ReplayBuffer
from replay.feeding.features import extract_features
from tests.helpers import Tokens, build_model
from tests.replay.methods.runs import Classifier, Points, make_trainer


def test_the_input_of_the_head_is_taken_in_the_order_of_the_data() -> None:
    model, data = Classifier(), Points(13)
    found = extract_features(model, data, batch_size=5)
    assert found.dtype == np.float32
    expected = model.body(data.x).tanh().detach().numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.parametrize("name", ["llama", "bert-masked-lm", "bert-tokens"])
def test_tokens_are_averaged_over_the_mask(name: str) -> None:
    model, data = build_model(name), Tokens(7, 1)
    model.eval()
    found = extract_features(model, _without_labels(data), batch_size=3)
    last = [module for module in model.modules() if isinstance(module, nn.Linear)][-1]
    for row, own in zip(data.rows, found, strict=True):
        seen: list[torch.Tensor] = []
        handle = last.register_forward_pre_hook(lambda module, args, seen=seen: seen.append(args[0].detach()))
        size = int(row["attention_mask"].sum())
        model(input_ids=row["input_ids"][None, :size], attention_mask=row["attention_mask"][None, :size])
        handle.remove()
        np.testing.assert_allclose(own, seen[0][0].mean(dim=0).numpy(), atol=1e-5)


def _without_labels(data: Tokens) -> list[dict[str, torch.Tensor]]:
    return [{name: value for name, value in row.items() if name != "labels"} for row in data.rows]


def test_a_named_module_and_what_is_no_input_of_the_model() -> None:
    model, data = Classifier(), Points(5)
    rows = [{**data[number], "text": "a", "idx": number} for number in range(5)]
    found = extract_features(model, rows, layer="body")
    np.testing.assert_allclose(found, model.body(data.x).detach().numpy(), rtol=1e-6)
    bert = build_model("bert-classifier")
    assert extract_features(bert, _without_labels(Tokens(3, 1)), layer="bert").shape == (3, 16)


def test_the_model_is_left_as_it_was() -> None:
    model = build_model("bert-classifier")
    model.train()
    model.classifier.eval()
    state = torch.get_rng_state()
    extract_features(model, _without_labels(Tokens(3, 1)))
    assert model.training
    assert not model.classifier.training
    assert torch.equal(torch.get_rng_state(), state)
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_a_trainer_gives_its_model_and_collator_and_a_buffer_takes_them(tmp_path: Path) -> None:
    buffer = ReplayBuffer(6, "Herding", is_online=False)
    trainer = make_trainer(tmp_path, buffer=buffer)
    data = trainer.streams[0].dataset
    features = extract_features(trainer, data)
    np.testing.assert_array_equal(features, extract_features(trainer.model, data))
    buffer.remember("new", data, features=features, labels=data.labels.numpy())
    assert len(buffer) == 6


class _NoLinear(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1, dtype=torch.float64))
        self.total = nn.Flatten(0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.total(x * self.scale)


@pytest.mark.parametrize(
    ("model", "layer", "message"),
    [
        (_NoLinear(), None, r"the model has no linear layer; say by layer= whose output is taken"),
        (_NoLinear(), "middle", r"there is no module 'middle'; the last ones are \['', 'total'\]"),
        (_NoLinear(), "total", r"'total' gave a tensor of shape \[24\] for a batch of 4 samples"),
    ],
)
def test_what_gives_no_features(model: nn.Module, layer: str | None, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        extract_features(model, Points(4), layer=layer)


def test_a_data_set_without_samples() -> None:
    with pytest.raises(ValueError, match="the data set has no samples"):
        extract_features(Classifier(), [])
