"""Which kind a loss is, how many terms it has, and that its gradient is that of the whole batch however it is cut."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor, nn
from transformers import BertLMHeadModel, Trainer, TrainerCallback

from mixer.losses.normalization import CANDIDATES, TOLERANCE, explaining, predicted
from mixer.models.labels import shifts_labels
from mixer.models.row_losses import hides_rows
from mixer.trainer.loss_kinds import LossKinds
from tests.helpers import (
    MODEL_DATA,
    GradientRecorder,
    Tokens,
    _bert_config,
    arguments,
    build_model,
    three_streams,
    weights_of,
)
from tests.losses import DECLARED, LOSSES, hard_half, padded, ragged, small_model, token_mean, whole_gradient
from tests.mixer.trainer.runs import train
from tests.refusals import refused

_ROWS = ragged(13, 1)
# What the loss of some rows is, given their terms, `[num_rows]` lists, and the items of the step.
_FORMS: dict[str, Any] = {
    "item mean": lambda rows, count: sum(map(sum, rows)) / sum(map(len, rows)),
    "items": lambda rows, count: sum(map(sum, rows)) / count,
    "row means": lambda rows, count: sum(sum(row) / len(row) for row in rows) / len(rows),
    "row sums": lambda rows, count: sum(map(sum, rows)) / len(rows),
    "sum": lambda rows, count: sum(map(sum, rows)),
}
_TERMS = [[0.5, 1.0], [2.0], [4.0, 1.0, 3.0], [2.5, 0.5, 1.0, 6.0]]
_ALL = np.ones(len(CANDIDATES), dtype=np.bool_)


def _explaining(loss: float, rows: list[list[float]], count: int, world_size: int, share: float = 0.0) -> set[Any]:
    sums, items = np.array([sum(row) for row in rows]), np.array([len(row) for row in rows])
    found = explaining(loss, predicted(sums, items, count, world_size), _ALL, TOLERANCE, share)
    return {(one.kind, one.is_scaled) for one, explains in zip(CANDIDATES, found, strict=True) if explains}


@pytest.mark.parametrize("is_scaled", [False, True])
@pytest.mark.parametrize("kind", _FORMS)
def test_rows_tell_the_kind(kind: str, is_scaled: bool) -> None:
    loss = _FORMS[kind](_TERMS, 25) * (3 if is_scaled else 1)
    assert _explaining(loss, _TERMS, 25, 3) == {(kind, is_scaled)}


@given(st.lists(st.lists(st.floats(0.1, 9.0), min_size=3, max_size=3), min_size=2, max_size=6))
def test_means_over_items_and_rows_are_one_where_rows_are_equally_long(rows: list[list[float]]) -> None:
    for kind in ("item mean", "row means"):
        found = {kind for kind, _ in _explaining(_FORMS[kind](rows, 100), rows, 100, 1)}
        assert {"item mean", "row means"} <= found
        assert "sum" not in found


def test_a_part_besides_the_rows_is_tolerated_up_to_a_share() -> None:
    loss = 1.05 * _FORMS["item mean"](_TERMS, 25)
    assert _explaining(loss, _TERMS, 25, 3) == set()
    assert _explaining(loss, _TERMS, 25, 3, share=0.1) == {("item mean", False)}
    assert _explaining(math.pi * loss, _TERMS, 1000, 1, share=0.1) == set()


def _run(folder: Path, per_device: int, loss: Any = None, model: Any = None, cuts: Any = (), **changes: Any) -> Any:
    recorder, parts = GradientRecorder(), np.split(np.arange(13), cuts)
    data = {f"stream {k}": [_ROWS[i] for i in part] for k, part in enumerate(parts)}
    own = {"batch_size": 13, "compute_loss_func": loss, "callbacks": [recorder], "data_collator": padded}
    own |= {"per_device_train_batch_size": per_device, "max_steps": 1, "train_dataset": data, **changes}
    trainer = train(folder, model or small_model(), **own)
    return recorder.gradients[0], trainer


def _error(gradient: torch.Tensor, exact: torch.Tensor) -> float:
    return float((gradient - exact).norm() / exact.norm())


_EXACT = [name for name, (_, is_exact) in LOSSES.items() if is_exact]
# Of single rows a mean over tokens looks like one over rows, and a sum like a mean of sums.
_OF_SINGLE_ROWS = {name: DECLARED.get(name) for name in _EXACT if name != "mean of rows' sums"}


@pytest.mark.parametrize(
    ("name", "per_device", "declared"),
    [
        *((name, 4, DECLARED.get(name)) for name in _EXACT),
        *((name, 1, declared) for name, declared in {**_OF_SINGLE_ROWS, "mean over tokens": "mean"}.items()),
        ("focal, mean over tokens", 4, None),
    ],
)
def test_gradient_is_the_one_of_the_whole_batch(tmp_path: Path, name: str, per_device: int, declared: Any) -> None:
    gradient, trainer = _run(tmp_path, per_device, LOSSES[name][0], cuts=[7], loss_reduction=declared)
    assert _error(gradient, whole_gradient(LOSSES[name][0], _ROWS)) < 1e-6
    rows = trainer.ledger.to_pandas()
    assert rows["loss"].isna().all() == (name in DECLARED)  # in the first step
    if name in DECLARED:
        return
    # Streams' losses make up the loss that was back-propagated.
    whole = (rows["loss"] * rows["items"]).sum() / rows["items"].sum()
    assert trainer.ledger.clock()["loss"].iloc[0] == pytest.approx(whole, rel=1e-5)


@pytest.mark.parametrize("name", [name for name, (_, is_exact) in LOSSES.items() if not is_exact])
def test_other_losses_are_named_once_and_computed(tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture) -> None:
    loss = LOSSES[name][0]
    gradient, _ = _run(tmp_path / "parts", 4, loss)
    said = [record.getMessage() for record in caplog.records if "cannot be seen" in record.getMessage()]
    assert len(said) == 1
    assert loss.__qualname__ in said[0]  # type: ignore[union-attr]
    assert "loss_reduction" in said[0]
    whole, _ = _run(tmp_path / "whole", 13, loss)
    exact = whole_gradient(loss, _ROWS)
    assert _error(whole, exact) < 1e-6  # as the way out says
    assert _error(gradient, exact) > 1e-3


def _half_mean(outputs: Any, labels: Any, num_items_in_batch: Any = None) -> Any:
    return token_mean(outputs, labels) / 2


def test_half_a_mean_is_not_taken_for_one_over_the_items_of_two_micro_batches(tmp_path: Path) -> None:
    row = _ROWS[0]
    own = {"train_dataset": {"a": [row] * 4}, "batch_size": 4, "compute_loss_func": _half_mean}
    recorder = GradientRecorder()
    args = {"per_device_train_batch_size": 2, "max_steps": 1, "data_collator": padded, "callbacks": [recorder]}
    train(tmp_path, small_model(), **own, **args)
    assert _error(recorder.gradients[0], whole_gradient(_half_mean, [row] * 4)) < 1e-6


class _Counter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = small_model()
        self.register_buffer("in_place", torch.zeros((), dtype=torch.int64))
        self.register_buffer("bound_anew", torch.zeros((), dtype=torch.int64))
        self.number = 0

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor, labels: torch.Tensor) -> Any:
        self.in_place += len(labels)
        self.bound_anew = self.bound_anew + len(labels)
        self.number += len(labels)
        return self.inner(input_ids=input_ids, attention_mask=attention_mask, labels=labels)


def test_a_forward_is_that_of_the_training(tmp_path: Path) -> None:
    own = {"save_strategy": "steps", "per_device_train_batch_size": 2, "max_steps": 4, "save_steps": 2, "batch_size": 4}
    own |= {"data_collator": padded, "train_dataset": {"a": _ROWS, "b": _ROWS}}
    model: Any = train(tmp_path, _Counter(), **own).model
    assert (model.in_place, model.bound_anew, model.number) == (16, 16, 16)
    gradient, trainer = _run(tmp_path / "wrapped", 4, model=_Counter(), cuts=[6])
    assert _error(gradient, whole_gradient(None, _ROWS)) < 1e-6  # its labels are shifted unknown to anybody
    assert not trainer._parts.run.splitting.by_stream  # and its rows are told apart
    resumed: Any = train(tmp_path, _Counter(), tmp_path / "checkpoint-2", **own).model
    assert (resumed.in_place, resumed.bound_anew) == (16, 16)


@pytest.mark.parametrize("name", MODEL_DATA)
def test_it_is_asked_of_the_model(name: str, tmp_path: Path) -> None:
    model = build_model(name)
    stock: Any = Trainer(model, arguments(tmp_path))
    assert shifts_labels(model, bool(stock._loss_shifts_labels)) == (name in ("llama", "gpt2"))
    assert shifts_labels(BertLMHeadModel(_bert_config(is_decoder=True)), by_name=False)
    model.loss_function = lambda logits, labels, **kwargs: logits.sum()
    assert not shifts_labels(model, by_name=False)


@pytest.mark.parametrize("per_device", [64, 2])
def test_losses_are_means_over_the_terms_and_the_gradient_is_the_trainers(tmp_path: Path, per_device: int) -> None:
    data = {"a": Tokens(7, 1), "b": Tokens(5, 2)}
    recorder, model = GradientRecorder(), build_model("gpt2").double()
    own = {"per_device_train_batch_size": per_device, "max_steps": 1, "batch_size": 12, "callbacks": [recorder]}
    trainer = train(tmp_path, model, train_dataset=data, **own)
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


def test_kernels_that_leave_no_logits_hide_rows(tmp_path: Path) -> None:
    other = {"fused_linear_cross_entropy": False}
    for config, hides in ((None, True), (other, False), ({**other, "cross_entropy": True}, True)):
        assert hides_rows(arguments(tmp_path, use_liger_kernel=True, liger_kernel_config=config)) is hides


def counted(model: nn.Module) -> list[int]:
    """The forwards of a model from now on."""
    forwards: list[int] = []
    model.register_forward_pre_hook(lambda *_: forwards.append(1))
    return forwards


@pytest.mark.parametrize("name", ["llama", "bert-classifier"])
def test_two_steps_are_two_forwards(name: str, tmp_path: Path) -> None:
    forwards = counted(model := build_model(name))
    train(tmp_path, model, train_dataset=three_streams(MODEL_DATA[name]), max_steps=2)
    assert len(forwards) == 2


@pytest.mark.parametrize("loss_type", ["nll", "dft", "chunked_nll"])
def test_two_steps_of_sft_are_two_forwards(loss_type: str, tmp_path: Path) -> None:
    cases: Any = pytest.importorskip("tests.mixer.trainer.trl.cases")
    trainer = cases.sft(tmp_path, cases.two_chats(), max_steps=2, loss_type=loss_type)
    forwards = counted(trainer.model)
    trainer.train()
    assert len(forwards) == 2


def test_a_declared_loss_is_not_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LossKinds, "_findings", None)
    rows = ragged(12, 1)
    own = {"data_collator": padded, "per_device_train_batch_size": 3, "batch_size": 6, "loss_reduction": "items"}
    trainer = train(tmp_path, small_model(), train_dataset={"a": rows[:5], "b": rows[5:]}, **own)
    assert trainer.ledger.to_pandas()["loss"].notna().all()


def test_another_declaration_is_refused(tmp_path: Path) -> None:
    with refused("loss_reduction"):
        arguments(tmp_path, loss_reduction="average")


_MORE_ROWS = ragged(24, 1)


class Late(TrainerCallback):
    """A mean over tokens, to which another term is added from a step on."""

    __qualname__ = "late"

    def __init__(self, step: int):
        self.step, self.is_on = step, False

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.is_on = state.global_step + 1 >= self.step

    def __call__(self, outputs: Any, labels: Tensor, num_items_in_batch: Any = None) -> Tensor:
        loss = token_mean(outputs, labels)
        return loss + hard_half(outputs, labels) if self.is_on else loss


def _told(folder: Path, loss: Any, caplog: pytest.LogCaptureFixture, **changes: Any) -> list[str]:
    own = {"per_device_train_batch_size": 3, "max_steps": 34, "learning_rate": 3e-2, "optim": "adamw_torch", **changes}
    own |= {"callbacks": [loss] if isinstance(loss, TrainerCallback) else [], "data_collator": padded}
    data = {"a": _MORE_ROWS[:10], "b": _MORE_ROWS[10:]}
    train(folder, small_model(1e-4), train_dataset=data, batch_size=12, compute_loss_func=loss, **own)
    messages = [record.getMessage() for record in caplog.records]
    return [message for message in messages if "cannot be seen" in message]


def test_a_late_term_is_told_in_the_next_step(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert not _told(tmp_path / "before", Late(10), caplog, max_steps=10)
    said = _told(tmp_path / "run", Late(10), caplog, max_steps=11)
    assert len(said) == 1


def _resumable(folder: Path, name: str, resume: Any = None) -> Any:
    own = {"per_device_train_batch_size": 3, "max_steps": 4, "save_strategy": "steps", "save_steps": 2}
    own |= {"batch_size": 8, "data_collator": padded, "compute_loss_func": LOSSES[name][0]}
    return train(folder, small_model(), resume, train_dataset={"a": _MORE_ROWS[:10], "b": _MORE_ROWS[10:]}, **own)


@pytest.mark.parametrize("name", ["mean of rows' means", "focal, mean over tokens", "in-batch contrastive"])
def test_a_resumed_run_is_the_same(name: str, tmp_path: Path) -> None:
    whole = _resumable(tmp_path, name)
    resumed = _resumable(tmp_path, name, tmp_path / "checkpoint-2")
    assert torch.equal(weights_of(whole.model), weights_of(resumed.model))
    assert whole.ledger.to_pandas()["loss"].notna().sum() == resumed.ledger.to_pandas()["loss"].notna().sum()
