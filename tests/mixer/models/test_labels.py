"""Token ids that a model does not have."""

import contextlib
import re
from pathlib import Path
from typing import Any

import datasets
import pytest
import torch
from datasets import Dataset
from hypothesis import given, settings, strategies as st
from torch import Tensor

from mixer import MixingTrainer, Stream
from mixer.models.labels import check_label_column, check_labels, num_classes_of
from mixer.models.token_ids import check_token_column, check_tokens, num_tokens_of
from mixer.utils.errors import InvalidValueError
from tests.helpers import MODEL_DATA, Tokens, build_model
from tests.mixer.forms import multi_task
from tests.mixer.trainer.runs import make, train
from tests.refusals import refused


def _table(labels: Any, column: str = "labels") -> datasets.Dataset:
    return datasets.Dataset.from_dict({"input_ids": [[1, 2, 3]] * len(labels), column: labels})


@settings(max_examples=20)
@given(labels=st.lists(st.integers(-3, 6) | st.just(-100), min_size=1, max_size=8))
def test_a_column_is_refused_where_its_tensor_is(labels: list[int]) -> None:
    wrong = [label for label in labels if label != -100 and not 0 <= label < 4]
    for check in (
        lambda: check_label_column("s", _table(labels, "label"), 4, "the head 'x'"),
        lambda: check_labels("s", torch.tensor(labels), 4, "the head 'x'"),
    ):
        if not wrong:
            check()
            continue
        with refused("labels", stream="s", found=max(wrong) if max(wrong) >= 4 else min(wrong)):
            check()


def test_labels_that_are_no_classes_say_nothing() -> None:
    for labels in (torch.tensor([9.0]), torch.tensor([], dtype=torch.long), [9], None, torch.tensor([-100, -100])):
        check_labels("s", labels, 4, "the head")
    for labels in ([9.5, 1.0], ["a", "b"], [[9, 1], [1, 9]], [-100, -100]):
        check_label_column("s", _table(labels), 4, "the head")
    check_label_column("s", [{"labels": 9}], 4, "the head")
    check_label_column("s", datasets.Dataset.from_dict({"x": [9]}), 4, "the head")
    check_label_column("s", _table([9]).with_transform(lambda batch: batch), 4, "the head")


def test_selected_rows_alone_count_and_named_classes_are_numbers_too() -> None:
    check_label_column("s", _table([0, 9, 1]).select([0, 2]), 4, "the head")
    with refused("labels", stream="s", found=9):
        check_label_column("s", _table([0, 9, 1]).select([1]), 4, "the head")
    named = _table([0, 2], "label").cast_column("label", datasets.ClassLabel(names=["a", "b", "c"]))
    with refused("labels", stream="s", found=2):
        check_label_column("s", named, 2, "the head")


def test_classes_are_those_of_classifiers_and_heads() -> None:
    for name in MODEL_DATA:
        has_classes = name in ("bert-classifier", "bert-tokens", "llama-classifier")
        assert num_classes_of(build_model(name), None) == (3 if has_classes else None)
    model = multi_task()
    found = [num_classes_of(model, task) for task in ("topic", "stars", "flags", "tags", "none")]
    assert found == [3, None, None, 3, None]
    assert num_classes_of(torch.nn.Linear(2, 2), None) is None


@pytest.mark.parametrize("labels", [[0, None, 1], [0.0, 1.0, 2.0], ["x", "y", "x"]])
def test_labels_that_are_no_numbers_of_classes_are_refused(tmp_path: Path, labels: list[Any]) -> None:
    good = _table([0, 1, 2], "label")
    with refused("label"):
        _trainer(tmp_path, {"good": good, "bad": _table(labels, "label")})


def test_rows_without_or_with_fractional_labels_are_named(tmp_path: Path) -> None:
    good = [{"input_ids": [1, 2, 3], "label": number} for number in (0, 1, 2)]
    for label, message in ((1.0, "Stream 'bad': its labels are fractions"), (None, "Stream 'bad': its first sample")):
        with pytest.raises(ValueError, match=message):
            _trainer(tmp_path, {"good": good, "bad": [{**good[0], "label": label}] * 3})
    for label, note in ((None, r"no value \(None\) in \['label'\]"), ("x", r"labels in \['label'\] are text")):
        with pytest.raises((TypeError, ValueError)) as error:
            _trainer(tmp_path, {"good": good, "bad": [good[0], *[{**good[0], "label": label}] * 3]}).train()
        assert re.search(note, "".join(error.value.__notes__))


class _Labelled(Tokens):
    """Rows with one label too many."""

    def __init__(self, num_samples: int, label: int, kind: str = "sequence-classification"):
        super().__init__(num_samples, 1, kind)
        for row in self.rows:
            row["labels"] = torch.full_like(row["labels"], label)


def _trainer(folder: Path, streams: Any, model: Any = "bert-classifier", **options: Any) -> MixingTrainer:
    return make(folder, model, max_steps=2, train_dataset=streams, **options)


_GOOD = Tokens(6, 2, "sequence-classification")


@pytest.mark.parametrize(
    ("kind", "label", "ends"),
    [
        *[
            ("sequence-classification", label, ends)
            for label, ends in ((3, True), (-1, True), (-100, False), (2, False))
        ],
        ("token-classification", 3, True),
        ("token-classification", -100, False),
    ],
)
def test_tensors_are_refused_when_they_come(tmp_path: Path, kind: str, label: int, ends: bool) -> None:
    model = "bert-classifier" if kind == "sequence-classification" else "bert-tokens"
    trainer = _trainer(tmp_path, {"good": Tokens(6, 2, kind), "bad": _Labelled(6, label, kind)}, model)
    with refused("labels", stream="bad") if ends else contextlib.nullcontext():
        trainer.train()


def test_the_head_and_the_stream_are_named(tmp_path: Path) -> None:
    with refused("labels", stream="bad"):  # a table is refused at construction
        _trainer(tmp_path, {"good": _GOOD, "bad": _table([0, 3])})
    streams = [Stream("a", _GOOD, head="topic"), Stream("b", _Labelled(6, 5), head="topic")]
    with refused("labels", stream="b"):
        _trainer(tmp_path, streams, multi_task()).train()


def test_labels_that_become_others_are_the_users_affair(tmp_path: Path) -> None:
    def from_one(samples: list[dict[str, Any]]) -> dict[str, Tensor]:
        ids = torch.tensor([sample["input_ids"] for sample in samples])
        return {"input_ids": ids, "labels": torch.tensor([sample["labels"] - 1 for sample in samples])}

    def lower(sample: dict[str, Any]) -> dict[str, Any]:
        return {**sample, "labels": sample["labels"] - 1}

    table = _table([1, 2, 3, 3])
    _trainer(tmp_path, {"a": table}, data_collator=from_one).train()
    _trainer(tmp_path, [Stream("a", table, data_collator=from_one), Stream("b", _GOOD)]).train()
    _trainer(tmp_path, [Stream("a", table, preprocess=lower), Stream("b", _GOOD)]).train()


def test_a_loss_of_the_users_own_may_take_any_labels(tmp_path: Path) -> None:
    def of_remainder(outputs: Any, labels: Tensor, num_items_in_batch: Any = None) -> Tensor:
        return torch.nn.functional.cross_entropy(outputs.logits, labels % 3)

    data = _Labelled(4, 7)
    _trainer(tmp_path, [Stream("a", _table([7, 8, 9]), compute_loss_func=of_remainder), Stream("b", _GOOD)]).train()
    _trainer(tmp_path, {"a": data}, compute_loss_func=of_remainder).train()
    with refused("labels", stream="b"):
        _trainer(tmp_path, [Stream("a", _GOOD, compute_loss_func=of_remainder), Stream("b", data)]).train()


def _rows(token: int) -> Dataset:
    return Dataset.from_dict({"input_ids": [[1, 2, 3]] * 5 + [[1, token, 3]], "labels": [[1, 2, 3]] * 6})


def _collated(rows: list[Any]) -> dict[str, torch.Tensor]:
    return {name: torch.tensor([row[name] for row in rows]) for name in ("input_ids", "labels")}


@pytest.mark.parametrize("wrong", [0, -1])
def test_ids_outside_of_the_embedding_are_refused_before_a_forward(wrong: int, tmp_path: Path) -> None:
    known = num_tokens_of(build_model("llama"))
    assert known is not None
    wrong = wrong or known
    for call in (
        lambda: check_tokens("s", torch.tensor([[0, wrong]]), known),
        lambda: check_token_column("s", _rows(wrong), known),
        lambda: make(tmp_path, train_dataset={"a": _rows(wrong)}),
        lambda: make(tmp_path, train_dataset={"a": _rows(1)}, eval_dataset=_rows(wrong), eval_strategy="epoch"),
        lambda: train(tmp_path, train_dataset={"a": _rows(wrong)}, data_collator=_collated, max_steps=3),
    ):
        with pytest.raises(InvalidValueError) as refused:
            call()
        assert (refused.value.option, refused.value.found) == ("input_ids", wrong)
    check_tokens("s", torch.tensor([[0, known - 1]]), known)
    check_token_column("s", _rows(known - 1), known)
    check_token_column("s", _rows(known).with_transform(lambda rows: rows), known)


def test_models_that_read_ids_in_their_own_way_are_left_alone() -> None:
    model: Any = build_model("llama")
    known = num_tokens_of(model)
    model.config.image_token_id = known
    assert num_tokens_of(model) is None

    class Mine(torch.nn.Embedding):
        pass

    assert num_tokens_of(Mine(3, 2)) is None


def test_a_checkpoint_of_another_vocabulary_is_refused_by_name(tmp_path: Path) -> None:
    train(tmp_path, max_steps=2, save_strategy="steps", save_steps=1)
    model: Any = build_model("llama")
    model.resize_token_embeddings(model.config.vocab_size + 8)
    with pytest.raises(InvalidValueError) as refused:
        train(tmp_path, model, tmp_path / "checkpoint-1", max_steps=2)
    assert refused.value.option == "resume_from_checkpoint"
    assert "embed_tokens" in str(refused.value)
