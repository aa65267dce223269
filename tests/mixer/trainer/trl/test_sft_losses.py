"""Under SFTTrainer, losses of the streams are those of each sample alone, and the gradient is that of all at once."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from tests.helpers import GradientRecorder
from tests.mixer.trainer.trl.cases import chats, completions, model_of, sft, texts


def _cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(logits, labels, reduction="none")


def _smoothed(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(logits, labels, reduction="none", label_smoothing=0.1)


def _dynamic(logits: Tensor, labels: Tensor) -> Tensor:
    losses = _cross_entropy(logits, labels)
    return losses * losses.detach().neg().exp()


def _doubled(logits: Tensor, labels: Tensor) -> Tensor:
    return 2.0 * _cross_entropy(logits, labels)


def _own_mean(outputs: Any, labels: Tensor, num_items_in_batch: Any = None) -> Tensor:
    return 2.0 * F.cross_entropy(outputs.logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())


def _own_sum(outputs: Any, labels: Tensor, num_items_in_batch: Any = None) -> Tensor:
    logits, targets = outputs.logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten()
    if num_items_in_batch is None:
        return 2.0 * F.cross_entropy(logits, targets)
    return 2.0 * F.cross_entropy(logits, targets, reduction="sum") / num_items_in_batch


def _three() -> dict[str, Any]:
    return {"chat": chats(7, 1), "answers": completions(5, 2), "text": texts(4, 3)}


def _two_chats() -> dict[str, Any]:
    return {"a": chats(7, 1), "b": chats(5, 2)}


def _two_completions() -> dict[str, Any]:
    return {"a": completions(5, 1), "b": completions(6, 2)}


def _many() -> dict[str, Any]:
    return {"a": chats(30, 1), "b": texts(20, 2)}


PACKED = {"packing": True, "max_length": 24}
# By case: data, the terms of a loss, whether micro-batches are of one stream each, and options.
CASES: dict[str, tuple[Any, Any, bool | None, dict[str, Any]]] = {
    "formats of their own": (_three, _cross_entropy, False, {}),
    "gpt2": (_three, _cross_entropy, False, {"model": "gpt2"}),
    "in one micro-batch": (_three, _cross_entropy, False, {"per_device_train_batch_size": 64}),
    "completions with their prompts": (_two_completions, _cross_entropy, None, {"completion_only_loss": False}),
    "assistant turns alone": (_two_chats, _cross_entropy, None, {"assistant_only_loss": True}),
    "dynamic": (_three, _dynamic, False, {"loss_type": "dft"}),  # read off the log-probabilities
    "smoothed": (_three, _smoothed, None, {"label_smoothing_factor": 0.1}),
    "own sum": (_three, _doubled, True, {"own": {"compute_loss_func": _own_sum}}),  # it is not what the rows show
    "own mean": (_three, _doubled, True, {"own": {"compute_loss_func": _own_mean}}),
    "end to end": (_three, _cross_entropy, None, {"padding_free": True, "max_length": None}),
    "packed": (_many, _cross_entropy, None, PACKED),
    "packed in one": (
        _many,
        _cross_entropy,
        None,
        {"packing": True, "max_length": 24, "per_device_train_batch_size": 64},
    ),
    "wrapped": (_many, _cross_entropy, None, {**PACKED, "packing_strategy": "wrapped"}),
    "experts": (_three, _cross_entropy, None, {"model": "mixtral"}),
}


def _totals(trainer: Any, model: Any, terms: Any) -> dict[str, tuple[Tensor, int]]:
    """By stream, the sum of the loss terms of its prepared data set and their number, document after document."""
    found = {}
    for stream in trainer.streams:
        total, count = torch.zeros((), dtype=torch.float64), 0
        for row in stream.dataset:
            ids, labels = torch.tensor(row["input_ids"]), torch.tensor(row["labels"])
            lengths = row["seq_lengths"] if "seq_lengths" in row and trainer.padding_free else [len(ids)]
            for own, targets in zip(ids.split(lengths), labels.split(lengths), strict=True):
                counted = targets[1:] != -100
                if counted.any():
                    logits = model(input_ids=own[None]).logits[0, :-1]
                    total = total + terms(logits[counted], targets[1:][counted]).sum()
                    count += int(counted.sum())
        found[stream.name] = (total, count)
    return found


@pytest.mark.parametrize("name", CASES)
def test_a_step_of_all_samples(tmp_path: Path, name: str) -> None:
    data, terms, by_stream, options = CASES[name]
    options = {"per_device_train_batch_size": 3, **options}
    kind, recorder = options.pop("model", "llama"), GradientRecorder()
    dtype = torch.float32 if kind == "mixtral" else torch.float64  # experts know no other
    own = {"callbacks": [recorder], **options.pop("own", {})}
    trainer = sft(tmp_path, data(), model_of(kind, dtype), own, max_steps=1, **options)
    trainer.mixing.set_batch_size(sum(len(stream.dataset) for stream in trainer.streams))
    trainer.train()
    bare, logged = model_of(kind, dtype).eval(), trainer.state.log_history[0]
    totals, num_samples = _totals(trainer, bare, terms), {own.name: len(own.dataset) for own in trainer.streams}
    for stream, (total, count) in totals.items():
        assert logged[f"count/{stream}"] == num_samples[stream]
        assert logged[f"loss/{stream}"] == pytest.approx(total.item() / count, rel=1e-6), stream
    assert by_stream in (None, trainer._parts.run.present_loader.by_stream)
    assert trainer.state.epoch == 1.0  # which is of packed rows where they are packed
    if kind == "mixtral":  # an auxiliary loss is no stream's, and does not grow with the micro-batches
        assert logged["loss/other"] == pytest.approx(0.02 * logged["aux_loss"], rel=1e-4)
        return
    whole = sum(total for total, _ in totals.values())
    items = sum(count for _, count in totals.values())
    if kind == "gpt2":  # the Trainer does not know that it shifts labels, and counts the first ones too
        items += sum(labels[0] != -100 for stream in trainer.streams for labels in stream.dataset["labels"])
    assert logged["loss"] == pytest.approx(whole.item() / items, rel=1e-5)
    (whole / items).backward()
    expected = torch.cat([parameter.grad.flatten() for parameter in bare.parameters()])
    torch.testing.assert_close(recorder.gradients[0], expected, rtol=0, atol=1e-6)  # per_token sums are of float32
