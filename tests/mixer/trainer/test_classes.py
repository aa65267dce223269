"""Data sets of one head whose `ClassLabel`s have other numbers for the same classes."""

from pathlib import Path
from typing import Any

import datasets
import pytest
import torch
from datasets import ClassLabel, Dataset

from mixer import Head, MixingTrainer, Stream
from tests.helpers import build_model
from tests.mixer.forms import multi_task
from tests.mixer.trainer.runs import make
from tests.refusals import refused

KNOWN, SWAPPED = ["bad", "fine", "good"], ["good", "bad", "fine"]


def _table(names: list[str] | None, column: str = "label", are_tags: bool = False) -> Dataset:
    values = [number % 3 for number in range(6)]
    labels = [[value] * 3 for value in values] if are_tags else values
    table = Dataset.from_dict({"input_ids": [[1, 2, 3]] * 6, column: labels})
    kind = datasets.Value("int64") if names is None else ClassLabel(names=names)
    return table.cast_column(column, datasets.List(kind) if are_tags else kind)


def _build(folder: Path, data: Any, model: Any = "bert-classifier", **options: Any) -> MixingTrainer:
    evaluates = {"eval_strategy": "steps", "eval_steps": 1} if "eval_dataset" in options else {}
    return make(folder, model, train_dataset=data, max_steps=1, **evaluates, **options)


def _batched(samples: list[Any]) -> Any:
    return {
        "input_ids": torch.tensor([[1, 2, 3] for _ in samples]),
        "labels": torch.tensor([row["label"] for row in samples]),
    }


def _shifted(sample: Any) -> Any:
    return {**sample, "label": (sample["label"] + 2) % 3}


def _as_it_is(sample: Any) -> Any:
    return dict(sample)


@pytest.mark.parametrize(
    ("data", "options"),
    [
        ({"a": _table(KNOWN), "b": _table(SWAPPED)}, {}),
        ({"a": _table(KNOWN, "labels"), "b": _table(SWAPPED, "labels")}, {}),
        ({"a": _table(KNOWN), "b": _table(None), "c": _table(["bad", "good", "fine"])}, {}),
        ({"a": _table(KNOWN), "b": _table(SWAPPED).to_iterable_dataset()}, {"mixing": "Uniform"}),
        ({"a": _table(KNOWN), "b": _table(SWAPPED)}, {"data_collator": _batched}),
        ([Stream("a", _table(KNOWN)), Stream("b", _table(SWAPPED), preprocess=_as_it_is)], {}),
        ({"a": _table(KNOWN), "b": _table(["no", "so so", "yes"])}, {}),
        ({"a": _table(KNOWN, "labels", True), "b": _table(SWAPPED, "labels", True)}, {"model": "bert-tokens"}),
        ({"a": _table(KNOWN)}, {"eval_dataset": _table(SWAPPED)}),
        ({"a": _table(KNOWN)}, {"eval_dataset": {"a": _table(KNOWN), "other": _table(SWAPPED)}}),
    ],
)
def test_another_order_is_refused(tmp_path: Path, data: Any, options: dict[str, Any]) -> None:
    with refused():
        _build(tmp_path, data, **options)


def test_the_run_describes_its_classes_by_name(tmp_path: Path) -> None:
    assert _build(tmp_path, {"a": _table(None), "b": _table(KNOWN)}).describe_run()["class_names"] == KNOWN


def test_the_call_that_is_offered_renumbers_the_labels(tmp_path: Path) -> None:
    other = _table(SWAPPED)
    with refused(stream="b") as caught:
        _build(tmp_path, {"a": _table(KNOWN), "b": other})
    call = str(caught.value).partition("Renumber it with ")[2].partition(", or")[0]
    assert call == "dataset.align_labels_with_mapping({'bad': 0, 'fine': 1, 'good': 2}, 'label')"
    aligned = other.align_labels_with_mapping({"bad": 0, "fine": 1, "good": 2}, "label")
    assert aligned["label"][:3] == [2, 0, 1]
    _build(tmp_path, {"a": _table(KNOWN), "b": aligned})


def test_streamed_rows_are_told_their_numbers(tmp_path: Path) -> None:
    streamed = _table(SWAPPED).to_iterable_dataset()
    with pytest.raises(ValueError, match=r"Stream 'b'.*its labels 0 to 2 become \[2, 0, 1\]"):
        _build(tmp_path, {"a": _table(KNOWN), "b": streamed}, mixing="Uniform")
    renumbered = streamed.map(lambda row: {"label": [2, 0, 1][row["label"]]})
    _build(tmp_path, {"a": _table(KNOWN), "b": renumbered}, mixing="Uniform")


@pytest.mark.parametrize(
    "data",
    [
        {"a": _table(KNOWN), "b": _table(["Bad", "FINE", "Good"])},
        {"a": _table(KNOWN), "b": _table([*KNOWN, "superb"])},
        {"a": _table(KNOWN), "b": _table(None)},
        [Stream("a", _table(KNOWN)), Stream("b", _table(SWAPPED), preprocess=_shifted)],
    ],
)
def test_numbers_that_mean_the_same_are_accepted(tmp_path: Path, data: Any) -> None:
    _build(tmp_path, data)


def test_numbers_beside_names_are_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    streams = [Stream("d", _table(None), preprocess=_as_it_is)]
    streams += [Stream(name, _table(names)) for name, names in {"a": None, "b": KNOWN, "c": None}.items()]
    _build(tmp_path, streams)
    [told] = [record.args for record in caplog.records if record.name.endswith("checks.classes")]
    assert told == ("stream 'a' and stream 'c'", "stream 'b'", dict(enumerate(KNOWN)), "label", KNOWN)
    caplog.clear()
    _build(tmp_path, {"a": _table(None), "b": _table(None)})
    assert not [record for record in caplog.records if record.name.endswith("checks.classes")]


@pytest.mark.parametrize("labels", [[0, None, 1], [0.0, 1.0, 2.0], ["x", "y", "z"]])
def test_labels_of_evaluation_sets_are_numbers_of_classes(tmp_path: Path, labels: list[Any]) -> None:
    held_out = Dataset.from_dict({"input_ids": [[1, 2, 3]] * 3, "label": labels})
    with refused("label"):
        _build(tmp_path, {"a": _table(None)}, eval_dataset={"b": held_out})


def test_heads_have_classes_of_their_own(tmp_path: Path) -> None:
    model = multi_task({"one": Head(3), "two": Head(3)})
    data = {"one": _table(KNOWN), "two": _table(SWAPPED)}
    _build(tmp_path, data, model, eval_dataset=data)
    with refused(stream="b"):
        _build(tmp_path, [Stream("a", data["one"], head="one"), Stream("b", data["two"], head="one")], model)


def test_a_configuration_with_other_numbers_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model: Any = build_model("bert-classifier")
    _build(tmp_path, {"a": _table(KNOWN)}, model)
    assert "label2id" not in caplog.text
    model.config.label2id = {"GOOD": 0, "FINE": 1, "BAD": 2}
    _build(tmp_path, {"a": _table(KNOWN)}, model)
    assert caplog.text.count("model.config.label2id") == 2  # in one message: to align with it, or to set it
