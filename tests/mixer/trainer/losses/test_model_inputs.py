"""Columns that a model cannot take, and rows that it fails on, are named with their stream."""

from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor, nn

from mixer import MixingTrainer, Stream
from mixer.models.inputs import check_columns, heads_of, takes_task
from tests.helpers import Tokens, arguments, build_model
from tests.mixer.forms import HEADS, multi_task, task_streams

_KIND = "sequence-classification"


class _Renamed(Tokens):
    def __init__(self, new: str, old: str | None = None):
        super().__init__(6, 1, _KIND)
        self.new, self.old = new, old

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        row = dict(super().__getitem__(index))
        row[self.new] = row["input_ids"] if self.old is None else row.pop(self.old)
        return row


def _trainer(folder: Path, streams: Any, model: Any = None, **options: Any) -> MixingTrainer:
    args = arguments(folder, **options.pop("args", {}))
    return MixingTrainer(model or build_model("bert-classifier"), args, train_dataset=streams, **options)


class _Own(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.out = nn.Embedding(64, 4), nn.Linear(4, 3)

    def forward(self, input_ids: Tensor, attention_mask: Tensor, labels: Tensor | None = None) -> Any:
        logits = self.out((self.embed(input_ids) * attention_mask[..., None]).mean(dim=1))
        return {"loss": None if labels is None else nn.functional.cross_entropy(logits, labels), "logits": logits}


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (("words",), r"Stream 'bad': its samples have the columns \['words'\], which _Own.forward do"),
        (
            ("words", "attention_mask"),
            r"Stream 'bad': _Own.forward needs \['attention_mask'\], but a micro-batch of it has \['input_ids', 'label",
        ),
    ],
)
def test_columns_that_do_not_fit_are_named(tmp_path: Path, changed: tuple[str, ...], message: str) -> None:
    streams, args = (
        {"good": Tokens(6, 1, _KIND), "bad": _Renamed(*changed)},
        {"remove_unused_columns": len(changed) > 1},
    )
    with pytest.raises(ValueError, match=message):
        _trainer(tmp_path, streams, _Own(), args=args)


@pytest.mark.parametrize(
    ("forward", "inputs", "message"),
    [
        (lambda a, b: 0, {"a": 1, "b": 2}, None),
        (lambda a, b=1: 0, {"a": 1}, None),
        (lambda *args: 0, {"anything": 1}, None),
        (lambda a, **kwargs: 0, {"a": 1, "more": 2}, None),
        (lambda a, **kwargs: 0, {"more": 2}, r"needs \['a'\]"),
        (lambda a: 0, {"a": 1, "b": 2, "c": 3}, r"the columns \['b', 'c'\], which"),
        (lambda a, *, b=1: 0, {"a": 1}, None),
    ],
)
def test_columns_are_held_against_the_parameters(forward: Any, inputs: Any, message: str | None) -> None:
    model = nn.Module()
    model.forward = forward  # type: ignore[method-assign]
    if message is None:
        check_columns(model, "s", inputs)
        return
    with pytest.raises(ValueError, match=message):
        check_columns(model, "s", inputs)


def test_adapters_are_looked_through() -> None:
    options = LoraConfig(r=2, target_modules=["query"])
    assert takes_task(get_peft_model(multi_task(), options))
    assert not takes_task(get_peft_model(build_model("bert-classifier"), options))
    assert list(heads_of(get_peft_model(multi_task(), options)) or {}) == list(HEADS)


# ---- Heads ----


@pytest.mark.parametrize(
    ("head", "build", "message"),
    [
        ("topic", lambda: build_model("bert-classifier"), r"The streams \['a'\] name a head, but BertForSequenceClass"),
        (
            "else",
            multi_task,
            r"heads \['topic', 'stars', 'flags', 'tags'\], but none for \['else'\] of the streams \['a'",
        ),
    ],
)
def test_a_head_that_the_model_has_not_is_named(tmp_path: Path, head: str, build: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        _trainer(tmp_path, [Stream("a", Tokens(6, 1, _KIND), head=head), *task_streams(["stars"])], build())


@pytest.mark.parametrize("head", ["stars", "flags"])
def test_smoothing_is_for_classes_alone(tmp_path: Path, head: str) -> None:
    args = {"label_smoothing_factor": 0.1}
    with pytest.raises(
        ValueError, match=rf"label_smoothing_factor=0\.1 needs classes, but stream '{head}' trains the head '{head}'"
    ):
        _trainer(tmp_path, task_streams(["topic", head]), multi_task(), args=args)

    def own_loss(outputs: Any, labels: Tensor, num_items_in_batch: Any = None) -> Tensor:
        return outputs.logits.square().mean()

    streams = task_streams(["topic", head], **{head: {"compute_loss_func": own_loss}})
    _trainer(tmp_path, streams, multi_task(), args=args).train()


# ---- What is no stream ----


_FUNCTION, _NAMES = "must be a function or None, got", "must be a list of column names or None, got"
_FINITE = "must be a finite number of 0 or more, got"


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        *((field, 3, f"{_FUNCTION} 3") for field in ("preprocess", "data_collator", "compute_loss_func")),
        *(("label_names", value, _NAMES) for value in ("labels", [1], 3, iter(["labels"]))),
        ("head", "", "must be the name of a head or None, got ''"),
        ("head", 0, "must be the name of a head or None, got 0"),
        *(("loss_weight", value, f"{_FINITE} {value}") for value in (-1.0, float("nan"), float("inf"), None)),
        ("loss_weight", "2", "must be a number, got '2'"),
        ("loss_weight", True, "must be a number, got True"),
    ],
)
def test_wrong_fields_are_named(field: str, value: Any, message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=rf"Stream 's': {field} {message}"):
        Stream("s", [{"x": torch.ones(1)}], **{field: value})


def test_what_is_asked_of_a_broken_device_does_not_hide_the_models_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> Any:
        raise RuntimeError("device-side assert triggered")

    model = build_model("gpt2")
    trainer = MixingTrainer(
        model, arguments(tmp_path, max_steps=1), train_dataset={"a": Tokens(8, 1), "b": Tokens(8, 2)}
    )
    monkeypatch.setattr(model, "forward", lambda *_, **__: [][0])
    monkeypatch.setattr("mixer.trainer.losses.unfit_rows", fail)
    with pytest.raises(IndexError) as caught:
        trainer.train()
    assert any("stream 'a': samples" in note for note in caught.value.__notes__)


class _Normalised(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.layer = nn.BatchNorm1d(2), nn.Linear(2, 1)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        logits = self.layer(self.norm(x)).squeeze(-1)
        return {"loss": nn.functional.mse_loss(logits, labels), "logits": logits}


def test_batch_normalisation_of_one_row_is_said_with_its_way_out(tmp_path: Path) -> None:
    rows = [{"x": torch.randn(2), "labels": torch.zeros(())} for _ in range(9)]
    args = arguments(tmp_path, max_steps=4, per_device_train_batch_size=4)
    trainer = MixingTrainer(_Normalised(), args, train_dataset={"a": rows, "b": rows}, batch_size=5)
    with pytest.raises(ValueError, match="more than 1 value per channel") as caught:
        trainer.train()
    assert any("dataloader_drop_last=True" in note for note in caught.value.__notes__)
