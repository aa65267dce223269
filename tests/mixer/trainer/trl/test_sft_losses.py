"""Losses of the streams under SFTTrainer are those of each sample alone, whatever becomes of its tokens."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from mixer import MixingSFTTrainer
from tests.mixer.trainer.trl.cases import chats, completions, model_of, sft_arguments, texts, tokenizer

Terms = Callable[[Tensor, Tensor], Tensor]


def _cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(logits, labels, reduction="none")


def _smoothed(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(logits, labels, reduction="none", label_smoothing=0.1)


def _dynamic(logits: Tensor, labels: Tensor) -> Tensor:
    losses = _cross_entropy(logits, labels)
    return losses * losses.neg().exp()


def _alone(model: Any, dataset: Any, terms: Terms, is_padding_free: bool) -> tuple[float, int]:
    """Gives the sum of the loss terms of a prepared data set and their number, document after document."""
    total, count = 0.0, 0
    for row in dataset:
        lengths = row["seq_lengths"] if "seq_lengths" in row and is_padding_free else [len(row["input_ids"])]
        ids, labels = torch.tensor(row["input_ids"]), torch.tensor(row["labels"])
        for own_ids, own_labels in zip(ids.split(lengths), labels.split(lengths), strict=True):
            with torch.no_grad():
                logits = model(input_ids=own_ids[None]).logits[0, :-1]
            targets = own_labels[1:]
            counted = targets != -100
            if counted.any():
                total += float(terms(logits[counted], targets[counted]).sum())
                count += int(counted.sum())
    return total, count


def _expect_losses_of(
    tmp_path: Path,
    data: dict[str, Any],
    terms: Terms = _cross_entropy,
    model_name: str = "llama",
    options: dict[str, Any] | None = None,
    **changes: Any,
) -> MixingSFTTrainer:
    """Trains one step of all samples and compares its losses with those of every sample by itself."""
    args = sft_arguments(tmp_path, per_device_train_batch_size=3, max_steps=1, **changes)
    dtype = torch.float32 if model_name == "mixtral" else torch.float64  # experts know no other
    trainer = MixingSFTTrainer(
        model_of(model_name, dtype),
        args,
        train_dataset=data,
        processing_class=tokenizer(),
        **(options or {}),
    )
    trainer.mixing.set_batch_size(sum(len(stream.dataset) for stream in trainer.streams))
    trainer.train()
    logged = next(entry for entry in trainer.state.log_history if "loss" in entry)
    bare = model_of(model_name, dtype).eval()
    for stream in trainer.streams:
        loss_sum, count = _alone(bare, stream.dataset, terms, trainer.padding_free)
        assert logged[f"count/{stream.name}"] == len(stream.dataset)
        assert logged[f"loss/{stream.name}"] == pytest.approx(loss_sum / count, rel=1e-6), stream.name
    return trainer


def _three() -> dict[str, Any]:
    return {"chat": chats(7, 1), "answers": completions(5, 2), "text": texts(4, 3)}


@pytest.mark.parametrize("model_name", ["llama", "gpt2"])
def test_formats_of_their_own(tmp_path: Path, model_name: str) -> None:
    trainer = _expect_losses_of(tmp_path, _three(), model_name=model_name)
    assert trainer._parts.losses.normalizations[0].rows_known
    assert not trainer._parts.run.present_loader.by_stream
    prompts = trainer.streams[1].dataset["labels"]
    assert all(labels[0] == -100 for labels in prompts)  # completions alone, although the first stream has none


def test_completions_with_their_prompts(tmp_path: Path) -> None:
    _expect_losses_of(tmp_path, {"a": completions(5, 1), "b": completions(6, 2)}, completion_only_loss=False)


def test_assistant_turns_alone(tmp_path: Path) -> None:
    trainer = _expect_losses_of(tmp_path, {"a": chats(7, 1), "b": chats(5, 2)}, assistant_only_loss=True)
    assert all(-100 in labels for labels in trainer.streams[0].dataset["labels"])


def test_dynamic_fine_tuning(tmp_path: Path) -> None:
    trainer = _expect_losses_of(tmp_path, _three(), _dynamic, loss_type="dft")
    assert not trainer._parts.run.present_loader.by_stream  # read off the log-probabilities


def test_smoothed_labels(tmp_path: Path) -> None:
    _expect_losses_of(tmp_path, _three(), _smoothed, label_smoothing_factor=0.1)


@pytest.mark.parametrize("divides", [True, False])
def test_a_loss_function_of_the_user(tmp_path: Path, divides: bool) -> None:
    def compute(outputs: Any, labels: Tensor, num_items_in_batch: Any = None) -> Tensor:
        logits, targets = outputs.logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten()
        if divides and num_items_in_batch is not None:
            return 2.0 * F.cross_entropy(logits, targets, reduction="sum") / num_items_in_batch
        return 2.0 * F.cross_entropy(logits, targets)

    def doubled(logits: Tensor, labels: Tensor) -> Tensor:
        return 2.0 * _cross_entropy(logits, labels)

    trainer = _expect_losses_of(tmp_path, _three(), doubled, options={"compute_loss_func": compute})
    assert trainer._parts.run.present_loader.by_stream  # it is not what the rows show


def test_samples_laid_end_to_end(tmp_path: Path) -> None:
    _expect_losses_of(tmp_path, _three(), padding_free=True, max_length=None)


@pytest.mark.parametrize("strategy", ["bfd", "wrapped"])
def test_packed_rows(tmp_path: Path, strategy: str) -> None:
    data = {"a": chats(30, 1), "b": texts(20, 2)}
    trainer = _expect_losses_of(tmp_path, data, packing=True, packing_strategy=strategy, max_length=24)
    assert len(trainer.streams[0].dataset) < 30
    assert trainer.state.epoch == 1.0  # which is of packed rows


def test_an_auxiliary_loss_is_no_streams_and_does_not_grow_with_the_micro_batches(tmp_path: Path) -> None:
    trainer = _expect_losses_of(tmp_path, _three(), model_name="mixtral")
    logged = next(entry for entry in trainer.state.log_history if "loss" in entry)
    assert logged["loss/other"] == pytest.approx(0.02 * logged["aux_loss"], rel=1e-4)
