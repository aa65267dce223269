from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import replay.feeding.gradient_scores
from replay import ReplayBuffer
from replay.feeding.features import extract_features
from replay.selection import GradientDiversity
from tests.helpers import Tokens, build_model
from tests.replay.methods.runs import Classifier, Points, gradient_of, make_trainer


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
    ("data", "layer", "message"),
    [
        (Points(4), None, r"the model has no linear layer; say by layer= whose output is taken"),
        (Points(4), "middle", r"there is no module 'middle'; the last ones are \['', '0'\]"),
        ([], None, "the data set has no samples"),
    ],
)
def test_what_gives_no_features(data: Any, layer: str | None, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        extract_features(nn.Sequential(nn.Conv1d(1, 1, 1)), data, layer=layer)


def _gradient(model: nn.Module, row: dict[str, torch.Tensor]) -> torch.Tensor:
    output = model(**{name: torch.as_tensor(value).unsqueeze(0) for name, value in row.items()})
    return torch.cat([own.flatten() for own in gradient_of(model, output["loss"])])


@pytest.mark.parametrize(("most_rows", "kind"), [(2, "points"), (32, "llama")])
def test_scores_are_largest_cosines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most_rows: int, kind: str) -> None:
    monkeypatch.setattr(replay.feeding.gradient_scores, "_MOST_ROWS", most_rows)
    data: Any = Points() if kind == "points" else Tokens(60, 1)
    model = Classifier() if kind == "points" else build_model("llama").double()
    buffer = ReplayBuffer(20, GradientDiversity(num_compared=4))
    trainer = make_trainer(tmp_path, model=model, new=data, buffer=buffer, max_steps=4)
    scorer, found = buffer.feeding.scorer, []

    def checked(batch: Any, offered: Any) -> np.ndarray:
        state, gradients = torch.get_rng_state(), [p.grad is None for p in model.parameters()]
        scores = scorer(batch, offered)
        assert torch.equal(torch.get_rng_state(), state)
        assert [p.grad is None for p in model.parameters()] == gradients
        slots = scorer._compared_slots()
        if not len(slots):
            assert np.isnan(scores).all()
        else:
            entries = torch.stack([_gradient(model, buffer[slot]) for slot in slots.tolist()])
            cursor = trainer.mixing.planner.cursors[0]
            for number, score in enumerate(scores.tolist()):
                _, _, positions = next(offered.by_stream(np.array([number])))
                own = _gradient(model, data[int(cursor.references(positions)[0])])
                cosines = entries @ own / entries.norm(dim=1) / own.norm()
                assert score == pytest.approx(float(cosines.max()), abs=1e-5)
        found.append(scores)
        return scores

    buffer.feeding.scorer = checked
    checked.prepare = scorer.prepare  # type: ignore[attr-defined]  # as the scorer has it
    trainer.train()
    assert len(found) == 4
    assert not np.isnan(found[-1]).any()
