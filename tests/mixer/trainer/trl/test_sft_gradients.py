"""MixingSFTTrainer on one data set is SFTTrainer to the bit; what users put below it; and resuming."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Trainer
from trl import SFTTrainer

from mixer import MixingMixin, MixingSFTTrainer, Order, Stream
from tests.helpers import GradientRecorder, weights_of
from tests.mixer.trainer.trl.cases import (
    chats,
    completions,
    model_of,
    sft,
    sft_arguments,
    texts,
    tokenizer,
    two_chats,
)


def _both(tmp_path: Path, model_name: str, data: Any, **changes: Any) -> list[Trainer]:
    """Trains SFTTrainer on the samples in our order, and ours on one data set."""
    order = Order(len(data), Stream("train", data).order_key(42)).indices(0, len(data)).tolist()
    trainers: list[Trainer] = []
    for trainer_class in (SFTTrainer, MixingSFTTrainer):
        options = {"optim": "adamw_torch", "learning_rate": 1e-2, "max_grad_norm": 1.0, "max_steps": -1, **changes}
        args = sft_arguments(tmp_path / trainer_class.__name__, num_train_epochs=1, **options)
        if trainer_class is SFTTrainer:
            args.train_sampling_strategy = "sequential"
        own = data.select(order) if trainer_class is SFTTrainer else data
        trainer = trainer_class(
            model_of(model_name), args, train_dataset=own, eval_dataset=data, processing_class=tokenizer()
        )
        trainer.train()
        trainers.append(trainer)
    return trainers


def _assert_same_logs(ours: Trainer, stock: Trainer, keys: str, tolerance: float) -> None:
    for mine, theirs in zip(ours.state.log_history, stock.state.log_history, strict=True):
        for key in keys.split():
            assert mine.get(key) == pytest.approx(theirs.get(key), abs=tolerance), key


@pytest.mark.parametrize(
    ("model_name", "changes"),
    [
        ("llama", {}),
        ("gpt2", {}),
        ("mixtral", {}),
        ("llama", {"loss_type": "dft"}),
        ("llama", {"padding_free": True, "max_length": None}),
        ("llama", {"assistant_only_loss": True}),
    ],
)
def test_one_data_set_trains_as_by_sft_trainer_to_the_bit(
    tmp_path: Path, model_name: str, changes: dict[str, Any]
) -> None:
    stock, ours = _both(tmp_path, model_name, chats(21, 1), **changes)
    assert torch.equal(weights_of(stock.model), weights_of(ours.model))
    keys = "loss grad_norm learning_rate epoch entropy mean_token_accuracy num_tokens"
    _assert_same_logs(ours, stock, keys, 1e-6)


@pytest.mark.parametrize("model_name", ["gpt2", "mixtral"])
def test_micro_batches_are_steps_of_accumulation(tmp_path: Path, model_name: str) -> None:
    changes = {"per_device_train_batch_size": 3, "gradient_accumulation_steps": 2}
    stock, ours = _both(tmp_path, model_name, chats(18, 1), **changes)
    torch.testing.assert_close(weights_of(stock.model), weights_of(ours.model), rtol=0, atol=1e-5)
    _assert_same_logs(ours, stock, "loss num_tokens aux_loss entropy", 1e-5)


def test_trying_the_loss_out_leaves_no_trace_in_the_metrics(tmp_path: Path) -> None:
    seen = []

    class Watching(MixingSFTTrainer):
        def get_batch_samples(self, *args: Any) -> Any:
            found = super().get_batch_samples(*args)  # with the trial forwards
            seen.append((dict(self._metrics["eval"]), dict(self._metrics["train"]), self._total_train_tokens))
            assert "gather_for_metrics" not in vars(self.accelerator)
            return found

    args = sft_arguments(tmp_path, max_steps=1)
    Watching(model_of(), args, train_dataset=two_chats(), processing_class=tokenizer()).train()
    assert seen == [({}, {}, 0)]


def test_a_mixin_of_the_user_over_a_subclass_of_sft_trainer(tmp_path: Path) -> None:
    class Penalised(SFTTrainer):
        def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            return super().compute_loss(model, inputs, *args, **kwargs) * 3.0

    class Mixed(MixingMixin, Penalised):
        pass

    gradients = []
    for trainer_class in (MixingSFTTrainer, Mixed):
        recorder = GradientRecorder()
        args = sft_arguments(tmp_path, max_steps=1, per_device_train_batch_size=2)
        own = {"processing_class": tokenizer(), "callbacks": [recorder]}
        trainer_class(model_of(), args, train_dataset=two_chats(), **own).train()
        gradients.append(recorder.gradients[0])
    torch.testing.assert_close(gradients[1], gradients[0] * 3.0, rtol=0, atol=1e-6)


@pytest.mark.parametrize("options", [{}, {"packing": True, "max_length": 24}])
def test_a_run_goes_on_to_the_bit(tmp_path: Path, options: dict[str, Any]) -> None:
    options = {"max_steps": 6, "per_device_train_batch_size": 2, "optim": "adamw_torch", **options}
    options |= {"save_strategy": "steps", "save_steps": 3}
    data = {"chat": chats(30, 1), "answers": completions(25, 2), "text": texts(20, 3)}
    own = {"batch_size": 7, "mixing": "LossChange"}
    whole, parts = (sft(tmp_path / folder, data, "llama", own, **options) for folder in ("whole", "parts"))
    whole.train()
    parts.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-3"))
    assert torch.equal(weights_of(whole.model), weights_of(parts.model))
    mine, theirs = (run.state.log_history[3:6] for run in (parts, whole))
    for key in ("loss", "loss/chat", "loss/answers", "weight/text", "count/text"):
        assert [entry[key] for entry in mine] == [entry[key] for entry in theirs]
