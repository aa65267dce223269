"""Columns that a model cannot take are named with their stream."""

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
    """Rows with a column more, or one under another name."""

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


def test_a_column_that_the_model_does_not_take_is_named(tmp_path: Path) -> None:
    streams = {"good": Tokens(6, 1, _KIND), "bad": _Renamed("words")}
    _trainer(tmp_path, streams).train()  # it is left out, as the Trainer does
    bare = _Own()
    with pytest.raises(
        ValueError, match=r"Stream 'bad': its samples have the columns \['words'\], which _Own.forward do"
    ):
        _trainer(tmp_path, streams, bare, args={"remove_unused_columns": False})


def test_a_column_that_the_model_needs_is_named(tmp_path: Path) -> None:
    streams = {"good": Tokens(6, 1, _KIND), "bad": _Renamed("words", "attention_mask")}
    message = (
        r"Stream 'bad': _Own.forward needs \['attention_mask'\], but a micro-batch of it has \['input_ids', 'label"
    )
    with pytest.raises(ValueError, match=message):
        _trainer(tmp_path, streams, _Own())


class _Own(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.out = nn.Embedding(64, 4), nn.Linear(4, 3)

    def forward(self, input_ids: Tensor, attention_mask: Tensor, labels: Tensor | None = None) -> Any:
        logits = self.out((self.embed(input_ids) * attention_mask[..., None]).mean(dim=1))
        return {"loss": None if labels is None else nn.functional.cross_entropy(logits, labels), "logits": logits}


def test_a_loss_of_ones_own_may_take_columns_out(tmp_path: Path) -> None:
    class Popping(MixingTrainer):
        def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            return super().compute_loss(model, {k: v for k, v in inputs.items() if k != "words"}, *args, **kwargs)

    args = arguments(tmp_path, remove_unused_columns=False)
    Popping(_Own(), args, train_dataset={"a": _Renamed("words")}).train()


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


def test_a_head_needs_a_model_that_takes_a_task(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"The streams \['a'\] name a head, but BertForSequenceClassification\.forward has"
    ):
        _trainer(tmp_path, [Stream("a", Tokens(6, 1, _KIND), head="topic"), Stream("b", Tokens(6, 2, _KIND))])


def test_an_unknown_head_is_named(tmp_path: Path) -> None:
    streams = [*task_streams(["topic"]), Stream("new", Tokens(6, 1, _KIND), head="else")]
    message = (
        r"heads \['topic', 'stars', 'flags', 'tags'\], but none for \['else'\] of the streams \['new'\].*"
        r"Stream\('new', data_set, head='topic'"
    )
    with pytest.raises(ValueError, match=message):
        _trainer(tmp_path, streams, multi_task())


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


@pytest.mark.parametrize(
    ("field", "value", "error", "message"),
    [
        ("preprocess", 3, TypeError, "preprocess must be a function or None, got 3"),
        ("data_collator", "default", TypeError, "data_collator must be a function or None, got 'default'"),
        ("compute_loss_func", {}, TypeError, "compute_loss_func must be a function or None, got {}"),
        ("label_names", "labels", TypeError, "label_names must be a list of column names or None, got 'labels'"),
        ("label_names", [1], TypeError, r"label_names must be a list of column names or None, got \[1\]"),
        ("label_names", 3, TypeError, "label_names must be a list of column names or None, got 3"),
        ("label_names", iter(["labels"]), TypeError, "label_names must be a list of column names or None"),
        ("head", "", TypeError, "head must be the name of a head or None, got ''"),
        ("head", 0, TypeError, "head must be the name of a head or None, got 0"),
        ("loss_weight", -1.0, ValueError, "loss_weight must be a finite number of 0 or more, got -1.0"),
        ("loss_weight", float("nan"), ValueError, "loss_weight must be a finite number of 0 or more, got nan"),
        ("loss_weight", float("inf"), ValueError, "loss_weight must be a finite number of 0 or more, got inf"),
        ("loss_weight", None, ValueError, "loss_weight must be a finite number of 0 or more, got None"),
        ("loss_weight", "2", TypeError, "loss_weight must be a number, got '2'"),
        ("loss_weight", True, TypeError, "loss_weight must be a number, got True"),
    ],
)
def test_wrong_fields_are_named(field: str, value: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=rf"Stream 's': {message}"):
        Stream("s", [{"x": torch.ones(1)}], **{field: value})
