"""A row of L labels has L - 1 terms where the model shifts them, whatever its class is called."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers import BertLMHeadModel, T5Config, T5ForConditionalGeneration, Trainer

from mixer import MixingTrainer
from mixer.models.labels import shifts_labels
from tests.helpers import MODEL_DATA, GradientRecorder, Tokens, _bert_config, arguments, build_model


@pytest.mark.parametrize("name", MODEL_DATA)
def test_it_is_asked_of_the_model(name: str, tmp_path: Path) -> None:
    model = build_model(name)
    stock: Any = Trainer(model, arguments(tmp_path))
    assert shifts_labels(model, bool(stock._loss_shifts_labels)) == (name in ("llama", "gpt2"))


def test_heads_of_other_names(tmp_path: Path) -> None:
    decoder: Any = BertLMHeadModel(_bert_config(is_decoder=True))
    stock: Any = Trainer(decoder, arguments(tmp_path))
    assert not stock._loss_shifts_labels
    assert shifts_labels(decoder, by_name=False)
    t5 = T5ForConditionalGeneration(T5Config(vocab_size=64, d_model=16, d_kv=8, d_ff=32, num_layers=1, num_heads=2))
    assert not shifts_labels(t5, by_name=False)
    assert not shifts_labels(nn.Linear(2, 2), by_name=False)


def test_a_loss_function_of_the_user_is_taken_for_what_the_trainer_takes_it() -> None:
    model = build_model("gpt2")
    model.loss_function = lambda logits, labels, **kwargs: logits.sum()
    assert not shifts_labels(model, by_name=False)


@pytest.mark.parametrize("per_device", [64, 2])
def test_losses_are_means_over_the_terms_and_the_gradient_is_the_trainers(tmp_path: Path, per_device: int) -> None:
    data = {"a": Tokens(7, 1), "b": Tokens(5, 2)}
    recorder, model = GradientRecorder(), build_model("gpt2").double()
    args = arguments(tmp_path, per_device_train_batch_size=per_device, max_steps=1)
    trainer = MixingTrainer(model, args, train_dataset=data, batch_size=12, callbacks=[recorder])
    trainer.train()
    bare, total, told = build_model("gpt2").double(), torch.zeros((), dtype=torch.float64), 0
    for name, own in data.items():
        rows = [{key: values[None] for key, values in row.items()} for row in own.rows]
        losses = [(bare(**row).loss, int((row["labels"] != -100).sum())) for row in rows]
        sums = sum(loss * (count - 1) for loss, count in losses)
        logged = trainer.state.log_history[0][f"loss/{name}"]
        assert logged == pytest.approx(sums.item() / sum(count - 1 for _, count in losses), rel=1e-6)
        total, told = total + sums, told + sum(count for _, count in losses)
    (total / told).backward()  # by what the Trainer counts
    assert trainer.state.log_history[0]["loss"] == pytest.approx((total / told).item(), rel=1e-6)
    assert "loss/other" not in trainer.state.log_history[0]
    expected = torch.cat([one.grad.flatten() for one in bare.parameters()])
    torch.testing.assert_close(recorder.gradients[0], expected, rtol=0, atol=1e-6)
