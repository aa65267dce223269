"""Dark experience replay of models that give logits for each token, against loops written out by hand."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from mixer import MixingTrainer
from replay import ReplayBuffer, ReplayRatio
from replay.methods import DER
from tests.helpers import MODEL_DATA, Tokens, arguments, build_model, weights_of
from tests.replay.methods.runs import Spy

TOKEN_MODELS = ["llama", "bert-masked-lm", "bert-tokens"]


class _WholeRows(Spy):
    """Notes rows padded to one length, whatever the micro-batches were cut to."""

    def begin_step(self, model: nn.Module, batch: Any) -> None:
        fill = {"input_ids": 0, "attention_mask": 0, "labels": -100}
        micros = [
            type(micro)(
                {key: F.pad(value, (0, 12 - value.shape[1]), value=fill[key]) for key, value in micro.inputs.items()},
                micro.stream_ids,
                micro.is_padding,
                micro.positions,
            )
            for micro in batch.micro_batches
        ]
        super().begin_step(model, type(batch)(batch.plan, tuple(micros)))


def _collate(rows: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """Makes micro-batches as long as their longest rows, so that a row is padded otherwise each time."""
    longest = max(int(row["attention_mask"].sum()) for row in rows)
    return {key: torch.stack([row[key][:longest] for row in rows]) for key in rows[0]}


def _flat(model: nn.Module, batch: dict[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits and labels at the positions that count, by hand."""
    logits, labels = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits, batch["labels"]
    if type(model).__name__.endswith(("CausalLM", "LMHeadModel")):
        logits, labels = logits[:, :-1], labels[:, 1:]
    counts = labels != -100
    return logits[counts], labels[counts]


def _width(model: nn.Module, batch: dict[str, torch.Tensor]) -> int:
    width = batch["labels"].shape[1]
    return width - 1 if type(model).__name__.endswith(("CausalLM", "LMHeadModel")) else width


@pytest.mark.parametrize("name", TOKEN_MODELS)
def test_tokens_are_held_to_their_largest_logits_whatever_the_padding(tmp_path: Path, name: str) -> None:
    data = Tokens(40, 3, MODEL_DATA[name])
    spy = _WholeRows()
    trainer = MixingTrainer(
        build_model(name).double(),
        arguments(tmp_path, per_device_train_batch_size=2, max_steps=4),
        _collate,
        {"new": data, "memory": ReplayBuffer(9, storage="memory")},
        mixing=ReplayRatio(0.5),
        batch_size=6,
        methods=[DER(alpha=0.5, top_k=2), spy],
    )
    trainer.train()
    model, kept = build_model(name).double(), {}
    for batch, rate in zip(spy.batches, spy.rates, strict=True):
        logits, labels = _flat(model, batch["new"])
        loss = F.cross_entropy(logits, labels)
        counts = (batch["new"]["labels"][:, -_width(model, batch["new"]) :] != -100).sum(dim=1).tolist()
        for ids, own in zip(batch["new"]["input_ids"], logits.detach().split(counts), strict=True):
            kept[ids.numpy().tobytes()] = own.topk(2)
        if "memory" in batch:
            before = [kept[ids.numpy().tobytes()] for ids in batch["memory"]["input_ids"]]
            values = torch.cat([values for values, _ in before])
            now = _flat(model, batch["memory"])[0].gather(-1, torch.cat([indices for _, indices in before]))
            loss = loss + 0.5 * F.mse_loss(now, values)
        loss.backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= rate * (0 if parameter.grad is None else parameter.grad)
                parameter.grad = None
    assert any("memory" in batch for batch in spy.batches)
    torch.testing.assert_close(
        weights_of(trainer.model), weights_of(model), rtol=0, atol=1e-8
    )  # its loss is single precision
