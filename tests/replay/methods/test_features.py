from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from replay import ReplayBuffer
from replay.feeding.features import extract_features
from tests.helpers import Tokens, build_model
from tests.refusals import refused
from tests.replay.methods.runs import Classifier, Points, make_trainer


def test_the_input_of_the_head_or_a_named_modules_output_is_taken_in_the_order_of_the_data(tmp_path: Path) -> None:
    model, data, buffer = Classifier(), Points(13), ReplayBuffer(6, "Herding", is_online=False)
    found = extract_features(model, data, batch_size=5)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, model.body(data.x).tanh().detach().numpy(), rtol=1e-6)
    rows = [{**data[number], "text": "a", "idx": number} for number in range(13)]  # and what is no input of the model
    np.testing.assert_allclose(extract_features(model, rows, layer="body"), model.body(data.x).detach(), rtol=1e-6)
    trainer = make_trainer(tmp_path, buffer=buffer, new=data, model=model)
    buffer.remember("new", data, features=extract_features(trainer, data), labels=data.labels.numpy())
    assert len(buffer) == 6


@pytest.mark.parametrize("name", ["llama", "bert-tokens"])
def test_tokens_are_averaged_over_the_mask_and_the_model_is_left_as_it_was(name: str) -> None:
    model, data, state = build_model(name), Tokens(7, 1), torch.get_rng_state()
    last = [module for module in model.modules() if isinstance(module, nn.Linear)][-1]
    model.train()
    last.eval()
    rows = [{name: value for name, value in row.items() if name != "labels"} for row in data.rows]
    found = extract_features(model, rows, batch_size=3)
    assert (model.training, last.training) == (True, False)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    model.eval()
    for row, own in zip(data.rows, found, strict=True):
        seen: list[torch.Tensor] = []
        handle = last.register_forward_pre_hook(lambda module, args, seen=seen: seen.append(args[0].detach()))
        size = int(row["attention_mask"].sum())
        model(input_ids=row["input_ids"][None, :size], attention_mask=row["attention_mask"][None, :size])
        handle.remove()
        np.testing.assert_allclose(own, seen[0][0].mean(dim=0).numpy(), atol=1e-5)


@pytest.mark.parametrize(
    ("data", "layer", "option"), [(Points(4), None, "layer"), (Points(4), "middle", "layer"), ([], None, "dataset")]
)
def test_what_gives_no_features(data: Any, layer: str | None, option: str) -> None:
    with refused(option):
        extract_features(nn.Sequential(nn.Conv1d(1, 1, 1)), data, layer=layer)
