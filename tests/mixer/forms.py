"""Streams that differ, and by hand what a step on them has to give."""

import copy
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from transformers import AutoModel, BertConfig

from mixer import Head, MixingTrainer, MultiTaskModel, Stream
from mixer.loading.loaded_step import StepBatch
from mixer.run.hooks import StepHook
from tests.helpers import VOCABULARY, GradientRecorder, Tokens, arguments, mixing_trainer

HEADS = {
    "topic": Head(3, dropout=0.0),
    "stars": Head(1, kind="regression", dropout=0.0),
    "flags": Head(3, kind="multi_label", dropout=0.0),
    "tags": Head(3, kind="token_classification", dropout=0.0),
}
KINDS = {
    "topic": "sequence-classification",
    "stars": "regression",
    "flags": "multi-label",
    "tags": "token-classification",
}
TINY = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
NAMES = tuple(HEADS)

LossSum = Callable[[nn.Module, str, Mapping[str, Tensor]], Tensor]


def multi_task(heads: Mapping[str, Head] = HEADS, dtype: torch.dtype = torch.float64) -> MultiTaskModel:
    torch.manual_seed(0)
    encoder = AutoModel.from_config(BertConfig(vocab_size=VOCABULARY, **TINY, **NO_DROPOUT))
    return MultiTaskModel.from_encoder(encoder, heads).to(dtype)


def task_data(name: str, num_samples: int = 12, seed: int = 0) -> Tokens:
    return Tokens(num_samples, seed + NAMES.index(name), KINDS[name])


def task_streams(names: Sequence[str] = NAMES, **changes: Any) -> list[Stream]:
    return [Stream(name, task_data(name), **changes.get(name, {})) for name in names]


class Watching(StepHook):
    def __init__(self, batches: list[tuple[StepBatch, nn.Module]]):
        self._batches = batches

    def begin_step(self, model: nn.Module, batch: StepBatch) -> None:
        weights = {name: value.clone() for name, value in model.state_dict().items()}
        self._batches.append((batch, _twin(model, weights)))


class Watched(MixingTrainer):
    def __init__(self, *args: Any, callbacks: Sequence[Any] = (), **kwargs: Any):
        self.batches: list[tuple[StepBatch, nn.Module]] = []
        self.recorder = GradientRecorder()
        super().__init__(*args, callbacks=[self.recorder, *callbacks], **kwargs)
        self._parts.hooks.insert(0, Watching(self.batches))


def _twin(model: nn.Module, weights: Mapping[str, Tensor]) -> nn.Module:
    tracked = {name: model.__dict__.pop(name) for name in ("_loss_function",) if name in model.__dict__}
    twin = copy.deepcopy(model)
    model.__dict__.update(tracked)
    twin.load_state_dict(dict(weights))
    twin.zero_grad()
    return twin


def watched(
    folder: Path, model: nn.Module, streams: Any, micro: int = 64, batch_size: int = 14, **options: Any
) -> Watched:
    args = arguments(folder, per_device_train_batch_size=micro, **options.pop("args", {}))
    return mixing_trainer(Watched, model, args, train_dataset=streams, batch_size=batch_size, **options)


def trained(folder: Path, model: nn.Module, streams: Any, *sizes: int, **options: Any) -> Watched:
    trainer = watched(folder, model, streams, *sizes, **options)
    trainer.train()
    return trainer


def loss_sum_of_head(model: nn.Module, task: str, row: Mapping[str, Tensor]) -> Tensor:
    inputs = {name: value for name, value in row.items() if name not in ("labels", "task")}
    logits, labels = model(task=task, **inputs).logits, row["labels"]
    if task in ("topic", "tags"):
        return F.cross_entropy(logits.reshape(-1, 3), labels.reshape(-1), reduction="sum", ignore_index=-100)
    labels = labels.reshape(logits.shape).to(logits.dtype)
    if task == "flags":
        return F.binary_cross_entropy_with_logits(logits, labels, reduction="sum")
    return ((logits - labels) ** 2).sum()


def num_items(row: Mapping[str, Tensor]) -> int:
    return int(row["labels"].ne(-100).sum())


def rows_by_stream(batch: StepBatch) -> dict[int, list[dict[str, Tensor]]]:
    rows: dict[int, list[dict[str, Tensor]]] = {}
    for micro in batch.micro_batches:
        for place, stream_id in enumerate(micro.stream_ids.tolist()):
            row = {name: value[place : place + 1] for name, value in micro.inputs.items() if isinstance(value, Tensor)}
            rows.setdefault(stream_id, []).append(row)
    return rows


def means_by_hand(
    batch: StepBatch,
    model: nn.Module,
    names: Sequence[str],
    loss_sum: LossSum = loss_sum_of_head,
    items: Callable[[Mapping[str, Tensor]], int] = num_items,
) -> dict[int, Tensor]:
    means = {}
    for stream_id, rows in rows_by_stream(batch).items():
        count = sum(items(row) for row in rows)
        if count:
            means[stream_id] = sum(loss_sum(model, names[stream_id], row) for row in rows) / count
    return means


def shares_by_hand(batch: StepBatch, means: Mapping[int, Any]) -> dict[int, float]:
    """The streams' shares of the samples; those without items count for nothing."""
    total = sum(int(batch.plan.counts[stream_id]) for stream_id in means)
    return {stream_id: int(batch.plan.counts[stream_id]) / total for stream_id in means}


def gradient_by_hand(
    batch: StepBatch, model: nn.Module, means: Mapping[int, Tensor], loss_weights: Mapping[int, float] | None = None
) -> Tensor:
    """The gradient of the sum of share × loss weight × mean loss."""
    shares, weights = shares_by_hand(batch, means), loss_weights or {}
    loss = sum(shares[stream_id] * weights.get(stream_id, 1.0) * mean for stream_id, mean in means.items())
    return _gradient_of(model, torch.as_tensor(loss))


def gradients_by_stream(model: nn.Module, means: Mapping[int, Tensor], num_streams: int) -> Tensor:
    return torch.stack([_gradient_of(model, means[stream_id]) for stream_id in range(num_streams)])


def _gradient_of(model: nn.Module, loss: Tensor) -> Tensor:
    parameters = list(model.parameters())
    found = torch.autograd.grad(loss, parameters, allow_unused=True, retain_graph=True)
    parts = [torch.zeros_like(p) if g is None else g for p, g in zip(parameters, found, strict=True)]
    return torch.cat([part.flatten() for part in parts])


def logged(trainer: MixingTrainer) -> list[dict[str, float]]:
    return [entry for entry in trainer.state.log_history if "loss" in entry]


def assert_logged(
    entry: Mapping[str, float], batch: StepBatch, means: Mapping[int, Tensor], names: Sequence[str], rel: float = 1e-5
) -> None:
    """The log has the streams' mean losses, and their mean by samples; nothing is left over."""
    shares = shares_by_hand(batch, means)
    for stream_id, mean in means.items():
        assert entry[f"loss/{names[stream_id]}"] == pytest.approx(mean.item(), rel=rel)
    expected = sum(shares[stream_id] * mean.item() for stream_id, mean in means.items())
    assert entry["loss"] == pytest.approx(expected, rel=max(rel, 1e-4))
    assert "loss/other" not in entry


def assert_by_hand(
    trainer: Watched, names: Sequence[str] = NAMES, weights: Any = None, tolerance: float = 1e-12, **by_hand: Any
) -> list[dict[int, Tensor]]:
    """Compares the gradient and the log of each step with what is computed by hand; gives the streams' mean losses."""
    found = []
    for gradient, (batch, model), entry in zip(
        trainer.recorder.gradients, trainer.batches, logged(trainer), strict=True
    ):
        own = dict(enumerate([] if batch.plan.loss_weights is None else batch.plan.loss_weights.tolist()))
        means = means_by_hand(batch, model, names, **by_hand)
        expected = gradient_by_hand(batch, model, means, own if weights is None else weights)
        torch.testing.assert_close(gradient, expected, rtol=0, atol=tolerance)
        assert_logged(entry, batch, means, names)
        found.append(means)
    return found
