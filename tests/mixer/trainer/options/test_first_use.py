"""What is wrong with a first script is said when its trainer is made, with what is there and the way out."""

import logging
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import datasets
import pytest
import torch
from torch import Tensor, nn

from mixer import MixingTrainer, Stream
from mixer.policies.function import Function
from mixer.schedules.function import Function as SizeFunction
from tests.helpers import Tokens, arguments, build_model


def _rows(label: str = "labels", num_rows: int = 12) -> datasets.Dataset:
    columns = {"input_ids": [[1 + row % 7] * 8 for row in range(num_rows)], "attention_mask": [[1] * 8] * num_rows}
    columns |= {label: [row % 3 for row in range(num_rows)], "text": ["a"] * num_rows}
    return datasets.Dataset.from_dict(columns)


def _trainer(folder: Path, streams: Any, changes: Any = None, model: Any = None, **options: Any) -> MixingTrainer:
    args = arguments(folder, **{"max_steps": 1, **(changes or {})})
    return MixingTrainer(model or build_model("bert-classifier"), args, train_dataset=streams, **options)


def _told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [own.message for own in caplog.records if own.levelno == logging.WARNING and "mixer" in own.name]


class Unlabelled(Tokens):
    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"number": torch.tensor(index), **{k: v for k, v in super().__getitem__(index).items() if k != "labels"}}


class OwnModel(nn.Module):
    """Makes its labels itself where none are given."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, input_ids: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        wanted = input_ids if labels is None else labels
        return {"loss": ((self.scale * input_ids - wanted - 1) ** 2).mean()}


@pytest.mark.parametrize("size", ["2", "1", "", "two"])
def test_processes_that_would_each_train_alone_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: str
) -> None:
    args = arguments(tmp_path)  # before: of a launch that it knows of it would wait for the other rank
    monkeypatch.setenv("WORLD_SIZE", size)
    refused = pytest.raises(ValueError, match=r"WORLD_SIZE=2, but the training arguments see one rank: .* use_cpu=True")
    with refused if size == "2" else nullcontext():
        MixingTrainer(build_model("bert-classifier"), args, train_dataset={"a": _rows()})


# ---- Labels ----


@pytest.mark.parametrize(
    ("streams", "model", "message"),
    [
        ({"b": _rows("target")}, "bert-classifier", r"'b': a micro-batch of it has \['input_ids', 'attention_mask'\]"),
        (
            {"a": _rows(), "b": _rows("target")},
            "bert-classifier",
            r"'b': .* columns \['input_ids', 'attention_mask', 'target', 'text'\]: rename",
        ),
        ({"a": Unlabelled(5, 1)}, "llama", r"'a': .* the columns \['number', 'input_ids', 'attention_mask'\]"),
    ],
)
def test_labels_that_are_not_there_are_named(tmp_path: Path, streams: Any, model: str, message: str) -> None:
    with pytest.raises(ValueError, match=rf"Stream {message}"):
        _trainer(tmp_path, streams, model=build_model(model))


def test_what_makes_them_or_does_without_goes(tmp_path: Path) -> None:
    def mean(outputs: Any, labels: Any, **options: Any) -> Tensor:
        return outputs["logits"].mean()

    stream = Stream("a", Unlabelled(5, 1), preprocess=lambda sample: {**sample, "labels": sample["input_ids"]})
    _trainer(tmp_path / "made", [stream], model=build_model("llama"))
    _trainer(tmp_path / "own", {"a": Unlabelled(5, 1)}, model=build_model("llama"), compute_loss_func=mean)


def test_of_a_model_of_the_users_it_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    trainer = _trainer(tmp_path, {"a": _rows("target")}, model=OwnModel())
    assert [message[:12] for message in _told(caplog)] == ["Stream 'a': "]
    assert "OwnModel needs labels for its loss" in caplog.text
    trainer.train()


# ---- Evaluation ----

EVALUATES = {"eval_strategy": "steps", "eval_steps": 1}


def test_an_empty_set_is_refused(tmp_path: Path) -> None:
    empty = _rows().select([])
    for sets, called in ((empty, "eval_dataset"), ({"a": empty}, r"eval_dataset\['a'\]")):
        with pytest.raises(ValueError, match=f"^{called} is empty, .* set eval_strategy='no'"):
            _trainer(tmp_path, {"a": _rows()}, EVALUATES, eval_dataset=sets)
        _trainer(tmp_path, {"a": _rows()}, eval_dataset=sets)


def test_one_without_labels_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    sets = {"a": _rows(), "b": _rows("target"), "held out": _rows("answer")}
    _trainer(tmp_path, {"a": _rows(), "b": _rows()}, EVALUATES, eval_dataset=sets)
    first, second = _told(caplog)
    assert first.startswith("eval_dataset['b'] has no loss: a micro-batch of it has ['input_ids'")
    assert "'answer', 'text']: rename" in second


# ---- Functions, batches, collators, checkpoints ----


@pytest.mark.parametrize(
    ("function", "goes"),
    [
        *((one, False) for one in (lambda step: [1], lambda step, weights, more: weights, lambda *, step: [1])),
        *((one, True) for one in (lambda *given: given[1], lambda step, weights, more=1: weights, max)),
    ],
)
def test_a_function_that_takes_something_else_is_refused(function: Any, goes: bool) -> None:
    for kind, call in ((Function, "mixing: .* f.step, weights."), (SizeFunction, "batch_size: .* f.step, batch_size.")):
        with nullcontext() if goes else pytest.raises(TypeError, match=f"{call}, but this one takes "):
            kind(function)


@pytest.mark.parametrize(("batch_size", "is_told"), [(6, True), (7, False)])
def test_a_batch_smaller_than_the_number_of_streams_is_told_once(
    tmp_path: Path, batch_size: int, is_told: bool, caplog: pytest.LogCaptureFixture
) -> None:
    data = {f"s{number}": _rows() for number in range(7)}
    trainer = _trainer(tmp_path, data, {"max_steps": 3}, batch_size=batch_size)
    told = _told(caplog)
    assert len(told) == is_told
    assert not told or told[0].startswith("batch_size=6 is smaller than the number of streams, 7: no step has all")
    trainer.train()
    seen = trainer.ledger.to_pandas().groupby("stream")["count"].sum()
    assert seen.max() - seen.min() <= 1


def _collate(samples: list[dict[str, Any]]) -> dict[str, Tensor]:
    ids = torch.tensor([list(sample["input_ids"]) for sample in samples])
    return {"input_ids": ids, "labels": torch.tensor([len(sample["text"]) for sample in samples])}


@pytest.mark.parametrize(
    ("streams", "removed"),
    [
        ({"a": _rows(), "b": _rows()}, "removed the columns ['text'], which the model's forward does not"),
        ({"a": [{**row, "text": "a"} for row in _rows("other")]}, "removed the columns ['other', 'text']"),
        ({"a": _rows().remove_columns("text")}, None),
    ],
)
def test_the_columns_that_were_removed_before_a_collator_are_named(
    tmp_path: Path, streams: Any, removed: str | None
) -> None:
    trainer = _trainer(tmp_path, streams, {"remove_unused_columns": removed is not None}, data_collator=_collate)
    with pytest.raises(KeyError, match="text") as caught:
        trainer.train()
    notes = "\n".join(caught.value.__notes__)
    assert removed in notes if removed else "remove_unused_columns" not in notes
    assert "several streams" not in notes


@pytest.mark.parametrize("there", [False, True])
def test_what_is_no_checkpoint_is_told_in_the_trainers_words(tmp_path: Path, there: bool) -> None:
    path = tmp_path / "run" / "checkpoint-3"
    if there:
        path.mkdir(parents=True)
    with pytest.raises(ValueError, match=rf"Can't find a valid checkpoint at {path}: .*start over without"):
        _trainer(tmp_path / "run", {"a": _rows()}).train(resume_from_checkpoint=str(path))
