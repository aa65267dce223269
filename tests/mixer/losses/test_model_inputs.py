"""Columns that a model cannot take, and rows that it fails on, are named with their stream."""

from pathlib import Path
from typing import Any

import datasets
import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor, nn

from mixer import MixingTrainer, Stream
from mixer.models.inputs import check_columns, heads_of, takes_task
from tests.helpers import Tokens, build_model
from tests.mixer.forms import HEADS, multi_task, task_streams
from tests.mixer.trainer.runs import make
from tests.refusals import refused

_KIND = "sequence-classification"


def _trainer(folder: Path, streams: Any, model: Any = "bert-classifier", **options: Any) -> MixingTrainer:
    return make(folder, model, **options.pop("args", {}), train_dataset=streams, **options)


def _from_images(batch: dict[str, Any]) -> dict[str, Any]:
    return {"input_ids": [[1, 2, 3] for _ in batch["image"]], "label": batch["label"]}


def test_a_transform_that_misses_a_removed_column_is_told_why(tmp_path: Path) -> None:
    images = datasets.Dataset.from_dict({"image": [[0.5]] * 6, "label": [0, 1, 2] * 2}).with_transform(_from_images)
    good = Tokens(6, 1, _KIND)
    with refused("remove_unused_columns", stream="images"):
        _trainer(tmp_path, {"good": good, "images": images})
    evaluates = {"eval_strategy": "steps", "eval_steps": 1}
    with pytest.raises(KeyError, match="image") as error:
        _trainer(tmp_path, good, eval_dataset=images, args={"max_steps": 1, **evaluates}).train()
    assert "remove_unused_columns=True" in "".join(error.value.__notes__)
    kept = {"max_steps": 1, "remove_unused_columns": False, **evaluates}
    _trainer(tmp_path, {"images": images}, eval_dataset=images, args=kept).train()


@pytest.mark.parametrize(
    ("forward", "inputs", "wrong"),
    [
        (lambda a, b: 0, {"a": 1, "b": 2}, None),
        (lambda a, b=1: 0, {"a": 1}, None),
        (lambda *args: 0, {"anything": 1}, None),
        (lambda a, **kwargs: 0, {"a": 1, "more": 2}, None),
        (lambda a, **kwargs: 0, {"more": 2}, ["more"]),
        (lambda a: 0, {"a": 1, "b": 2, "c": 3}, ["b", "c"]),
        (lambda a, *, b=1: 0, {"a": 1}, None),
    ],
)
def test_columns_are_held_against_the_parameters(forward: Any, inputs: Any, wrong: list[str] | None) -> None:
    model = nn.Module()
    model.forward = forward  # type: ignore[method-assign]
    if wrong is None:
        check_columns(model, "s", inputs)
        return
    with refused("columns", stream="s", found=wrong):
        check_columns(model, "s", inputs)


def test_adapters_are_looked_through() -> None:
    options = LoraConfig(r=2, target_modules=["query"])
    assert takes_task(get_peft_model(multi_task(), options))
    assert not takes_task(get_peft_model(build_model("bert-classifier"), options))
    assert list(heads_of(get_peft_model(multi_task(), options)) or {}) == list(HEADS)


@pytest.mark.parametrize(("head", "build"), [("topic", lambda: build_model("bert-classifier")), ("else", multi_task)])
def test_a_head_that_the_model_has_not_is_named(tmp_path: Path, head: str, build: Any) -> None:
    with refused("head"):
        _trainer(tmp_path, [Stream("a", Tokens(6, 1, _KIND), head=head), *task_streams(["stars"])], build())


@pytest.mark.parametrize("head", ["stars", "flags"])
def test_smoothing_is_for_classes_alone(tmp_path: Path, head: str) -> None:
    args = {"label_smoothing_factor": 0.1}
    with refused("label_smoothing_factor", stream=head):
        _trainer(tmp_path, task_streams(["topic", head]), multi_task(), args=args)

    def own_loss(outputs: Any, labels: Tensor, num_items_in_batch: Any = None) -> Tensor:
        return outputs.logits.square().mean()

    streams = task_streams(["topic", head], **{head: {"compute_loss_func": own_loss}})
    _trainer(tmp_path, streams, multi_task(), args=args).train()


_FUNCTIONS = ("preprocess", "data_collator", "compute_loss_func")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *((field, 3) for field in _FUNCTIONS),
        *(("label_names", value) for value in ("labels", [1], 3, iter(["labels"]))),
        *(("head", value) for value in ("", 0)),
        *(("loss_weight", value) for value in (-1.0, float("nan"), float("inf"), None, "2", True)),
    ],
)
def test_wrong_fields_are_named(field: str, value: Any) -> None:
    with refused(field, kind=(ValueError, TypeError), stream="s"):
        Stream("s", [{"x": torch.ones(1)}], **{field: value})
