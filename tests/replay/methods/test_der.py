from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn
from transformers import DataCollatorWithFlattening

from mixer import MixingTrainer
from replay import ReplayBuffer, ReplayRatio
from replay.methods import AGEM, DER, DERPlusPlus
from tests.helpers import MODEL_DATA, Tokens, build_model, weights_of
from tests.refusals import refused
from tests.replay.methods.runs import Classifier, Points, Spy, logged, make_trainer, step, trained


def _payloads(trainer: MixingTrainer) -> list[np.ndarray]:
    return trainer.buffer.payloads(np.arange(len(trainer.buffer)), "logits")


@pytest.mark.parametrize(("name", "width"), [("llama", 32), ("bert-tokens", 3)])
def test_of_tokens_thirty_two_logits_are_kept_or_all_there_are(tmp_path: Path, name: str, width: int) -> None:
    trainer = trained(tmp_path, [DER()], model=build_model(name), new=Tokens(30, 1, MODEL_DATA[name]), max_steps=2)
    for slot, kept in enumerate(_payloads(trainer)):
        labels = trainer.buffer[slot]["labels"]
        assert kept.shape == (int((labels[name == "llama" :] != -100).sum()), 2, width)
        assert kept[:, 1].max() < 64
    for top_k, shape in ((None, (3,)), (2, (2, 2))):  # of a vector
        assert {kept.shape for kept in _payloads(trained(tmp_path, [DER(top_k=top_k)], max_steps=2))} == {shape}


@pytest.mark.parametrize("name", ["bert-regression", "bert-multi-label", "bert-classifier"])
def test_other_heads_run_and_half_precision_is_kept_in_single(tmp_path: Path, name: str) -> None:
    options = {"model": build_model(name), "new": Tokens(40, 1, MODEL_DATA[name]), "bf16": name == "bert-classifier"}
    trainer = trained(tmp_path, [DERPlusPlus()], **options)
    first, *_, last = logged(trainer, "term/DERPlusPlus")
    assert first == 0.0 < last
    assert {kept.dtype for kept in _payloads(trainer)} == {np.dtype(np.float32)}


def test_samples_of_another_buffer_are_replayed_as_samples_of_the_batch(tmp_path: Path) -> None:
    other = ReplayBuffer(20, is_online=False)
    other.remember("other", Points(20, seed=2))
    for stream in (other, Points(20, seed=2)):
        trainer = make_trainer(tmp_path, [DER()], new={"new": Points(), "old": stream})
        assert trainer._parts.methods.all[-1].factors(None, np.array([6, 2, 4])).tolist() == [1.5, 1.5, 0.0]


class _WholeRows(Spy):
    """Notes rows padded to one length, whatever the micro-batches were cut to."""

    def begin_step(self, model: nn.Module, batch: Any) -> None:
        fill = {"input_ids": 0, "attention_mask": 0, "labels": -100}
        micros = []
        for micro in batch.micro_batches:
            padded = {key: F.pad(own, (0, 12 - own.shape[1]), value=fill[key]) for key, own in micro.inputs.items()}
            micros.append(replace(micro, inputs=padded))
        super().begin_step(model, type(batch)(batch.plan, tuple(micros)))


def _shortest(rows: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    longest = max(int(row["attention_mask"].sum()) for row in rows)
    return {key: torch.stack([row[key][:longest] for row in rows]) for key in rows[0]}


@pytest.mark.parametrize("name", ["llama", "bert-masked-lm", "bert-tokens"])
def test_tokens_are_held_to_their_largest_logits_whatever_the_padding(tmp_path: Path, name: str) -> None:
    options = {"new": Tokens(40, 3, MODEL_DATA[name]), "data_collator": _shortest, "batch_size": 6, "max_steps": 4}
    memory = {"buffer": ReplayBuffer(9, storage="memory"), "mixing": ReplayRatio(0.5), "per_device_train_batch_size": 2}
    spy, shift = _WholeRows(), name == "llama"
    trainer = trained(tmp_path, [DER(alpha=0.5, top_k=2), spy], model=build_model(name).double(), **options, **memory)
    model, kept = build_model(name).double(), {}

    def flat(batch: dict[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        logits = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
        labels = batch["labels"][:, shift:]
        counts = labels != -100
        return logits[:, : labels.shape[1]][counts], labels[counts]

    for batch, rate in zip(spy.batches, spy.rates, strict=True):
        logits, labels = flat(batch["new"])
        loss = F.cross_entropy(logits, labels)
        counts = (batch["new"]["labels"][:, shift:] != -100).sum(dim=1).tolist()
        for ids, own in zip(batch["new"]["input_ids"], logits.detach().split(counts), strict=True):
            kept[ids.numpy().tobytes()] = own.topk(2)
        if "memory" in batch:
            before = [kept[ids.numpy().tobytes()] for ids in batch["memory"]["input_ids"]]
            now = flat(batch["memory"])[0].gather(-1, torch.cat([indices for _, indices in before]))
            loss = loss + 0.5 * F.mse_loss(now, torch.cat([values for values, _ in before]))
        parameters = list(model.parameters())
        found = torch.autograd.grad(loss, parameters, allow_unused=True)
        step(model, [torch.zeros_like(p) if g is None else g for p, g in zip(parameters, found, strict=True)], rate)
    assert any("memory" in batch for batch in spy.batches)
    torch.testing.assert_close(weights_of(trainer.model), weights_of(model), rtol=0, atol=1e-8)  # loss in single


OTHER = ReplayBuffer(5)


@pytest.mark.parametrize(
    ("methods", "options", "option"),
    [
        ([DER("second")], {"second": True}, "memory"),
        ([DERPlusPlus(second="new")], {}, "second"),
        (
            [DERPlusPlus(second="second")],
            {"new": {"new": Points(), "second": OTHER.second_draw(), "later": OTHER}},
            "second",
        ),
        ([], {"new": {"new": Points(), "s": OTHER.second_draw()}}, "second_draw"),
        *(([method()], {"second": True}, "second") for method in (DER, DERPlusPlus, AGEM)),
        ([AGEM("new")], {}, "memory"),
    ],
)
def test_streams_that_do_not_fit_are_refused(tmp_path: Path, methods: Any, options: Any, option: str) -> None:
    with refused(option):
        make_trainer(tmp_path, methods, **options)


class _Changed(Classifier):
    def __init__(self, change: Any) -> None:
        super().__init__()
        self.change = change

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        output = super().forward(x, labels)
        return {"loss": output["loss"], **self.change(output["logits"])}


@pytest.mark.parametrize(
    ("payloads", "change", "about"),
    [
        ({}, None, ("payloads", None)),
        ({"logits": np.zeros((8, 4))}, None, ("logits", [3])),
        (None, lambda logits: {}, ("logits", "no 'logits'")),
        (None, lambda logits: {"logits": logits[:, 0]}, ("logits", "'logits' of shape [3]")),
    ],
)
def test_what_cannot_be_compared_is_refused(tmp_path: Path, payloads: Any, change: Any, about: Any) -> None:
    buffer = ReplayBuffer(12, is_online=payloads is None)
    if payloads is not None:
        buffer.remember("old", Points(8, seed=2), payloads=payloads)
    with refused(about[0], found=about[1]):
        trained(tmp_path, [DER()], buffer=buffer, model=_Changed(change) if change else None)


def test_packed_rows_are_refused(tmp_path: Path) -> None:
    rows = [{"input_ids": row["input_ids"][:5].tolist()} for row in Tokens(20, 1).rows]
    options = {"new": rows, "batch_size": None, "data_collator": DataCollatorWithFlattening()}
    with refused("logits"):
        trained(tmp_path, [DER()], model=build_model("llama"), buffer=ReplayBuffer(9, storage="memory"), **options)
