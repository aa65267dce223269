"""What SFTTrainer is trained by on streams: the gradient of the whole batch, and with one data set its own."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from transformers import Trainer
from trl import SFTTrainer

from mixer import MixingMixin, MixingSFTTrainer, Order, Stream
from tests.helpers import GradientRecorder, weights_of
from tests.mixer.trainer.trl.cases import (
    chats,
    completions,
    model_of,
    sft_arguments,
    texts,
    tokenizer,
    two_chats,
)

VARIANTS: dict[str, dict[str, Any]] = {
    "nll": {},
    "dft": {"loss_type": "dft"},
    "end to end": {"padding_free": True, "max_length": None},
    "packed": {"packing": True, "max_length": 24},
    "assistant": {"assistant_only_loss": True},
}


def _whole_gradient(model: Any, streams: list[Stream], divide_by: int, is_dynamic: bool) -> torch.Tensor:
    """Differentiates the sum of all terms over a number, document after document."""
    total = torch.zeros((), dtype=torch.float64)
    for stream in streams:
        for row in stream.dataset:
            lengths = row.get("seq_lengths") or [len(row["input_ids"])]
            ids, labels = torch.tensor(row["input_ids"]), torch.tensor(row["labels"])
            for own_ids, own_labels in zip(ids.split(lengths), labels.split(lengths), strict=True):
                logits = model(input_ids=own_ids[None]).logits[0, :-1]
                terms = F.cross_entropy(logits, own_labels[1:], reduction="none")
                total = total + (terms * terms.detach().neg().exp() if is_dynamic else terms).sum()
    (total / divide_by).backward()
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters()])


@pytest.mark.parametrize("per_device", [2, 64])
@pytest.mark.parametrize("variant", VARIANTS)
def test_it_is_that_of_all_samples_at_once(tmp_path: Path, variant: str, per_device: int) -> None:
    recorder, options = GradientRecorder(), VARIANTS[variant]
    trainer = MixingSFTTrainer(
        model_of(dtype=torch.float64),
        sft_arguments(tmp_path, per_device_train_batch_size=per_device, max_steps=1, **options),
        train_dataset={"a": chats(7, 1), "b": chats(4, 2)},
        processing_class=tokenizer(),
        callbacks=[recorder],
    )
    trainer.mixing.set_batch_size(sum(len(stream.dataset) for stream in trainer.streams))
    trainer.train()
    items = int(trainer._parts.run.step.counts.items.sum())
    expected = _whole_gradient(model_of(dtype=torch.float64), trainer.streams, items, variant == "dft")
    torch.testing.assert_close(recorder.gradients[0], expected, rtol=0, atol=1e-6)  # per_token sums are of float32


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
    for mine, theirs in zip(ours.state.log_history, stock.state.log_history, strict=True):
        for key in ("loss", "grad_norm", "learning_rate", "epoch", "entropy", "mean_token_accuracy", "num_tokens"):
            assert mine.get(key) == pytest.approx(theirs.get(key), abs=1e-6), key


@pytest.mark.parametrize("model_name", ["llama", "gpt2", "mixtral"])
def test_micro_batches_are_steps_of_accumulation(tmp_path: Path, model_name: str) -> None:
    changes = {"per_device_train_batch_size": 3, "gradient_accumulation_steps": 2}
    stock, ours = _both(tmp_path, model_name, chats(18, 1), **changes)
    torch.testing.assert_close(weights_of(stock.model), weights_of(ours.model), rtol=0, atol=1e-5)
    for mine, theirs in zip(ours.state.log_history, stock.state.log_history, strict=True):
        for key in ("loss", "num_tokens", "aux_loss", "entropy"):
            assert mine.get(key) == pytest.approx(theirs.get(key), abs=1e-5), key


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
        trainer_class(
            model_of(), args, train_dataset=two_chats(), processing_class=tokenizer(), callbacks=[recorder]
        ).train()
        gradients.append(recorder.gradients[0])
    torch.testing.assert_close(gradients[1], gradients[0] * 3.0, rtol=0, atol=1e-6)


@pytest.mark.parametrize("options", [{}, {"packing": True, "max_length": 24}])
def test_a_run_goes_on_to_the_bit(tmp_path: Path, options: dict[str, Any]) -> None:
    def trainer(folder: str) -> MixingSFTTrainer:
        args = sft_arguments(
            tmp_path / folder, max_steps=6, per_device_train_batch_size=2, optim="adamw_torch", **options
        )
        args.save_strategy, args.save_steps = "steps", 3
        data = {"chat": chats(30, 1), "answers": completions(25, 2), "text": texts(20, 3)}
        return MixingSFTTrainer(
            model_of(), args, train_dataset=data, processing_class=tokenizer(), batch_size=7, mixing="LossChange"
        )

    whole, parts = trainer("whole"), trainer("parts")
    whole.train()
    parts.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-3"))
    assert torch.equal(weights_of(whole.model), weights_of(parts.model))
    mine, theirs = (run.state.log_history[3:6] for run in (parts, whole))
    for key in ("loss", "loss/chat", "loss/answers", "weight/text", "count/text"):
        assert [entry[key] for entry in mine] == [entry[key] for entry in theirs]
