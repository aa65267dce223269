"""What is wrong with a first script is said when its trainer is made, with what is there and the way out."""

import logging
from collections.abc import Callable
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

CLASSIFIER = "bert-classifier"


def _rows(label: str = "labels", num_rows: int = 12) -> datasets.Dataset:
    columns = {
        "input_ids": [[1 + row % 7] * 8 for row in range(num_rows)],
        "attention_mask": [[1] * 8] * num_rows,
        label: [row % 3 for row in range(num_rows)],
        "text": ["a"] * num_rows,
    }
    return datasets.Dataset.from_dict(columns)


def _trainer(folder: Path, streams: Any, changes: dict[str, Any] | None = None, **options: Any) -> MixingTrainer:
    model = options.pop("model", None) or build_model(CLASSIFIER)
    return MixingTrainer(model, arguments(folder, **(changes or {})), train_dataset=streams, **options)


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


class TestRanks:
    def test_processes_that_would_each_train_alone_are_refused(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        args = arguments(tmp_path)  # before: of a launch that it knows of it would wait for the other rank
        monkeypatch.setenv("WORLD_SIZE", "2")
        with pytest.raises(ValueError, match=r"WORLD_SIZE=2, but the training arguments see one rank: .* use_cpu=True"):
            MixingTrainer(build_model(CLASSIFIER), args, train_dataset={"a": _rows()})

    @pytest.mark.parametrize("size", ["1", "", "two"])
    def test_one_process_is_as_it_was(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: str) -> None:
        args = arguments(tmp_path)
        monkeypatch.setenv("WORLD_SIZE", size)
        MixingTrainer(build_model(CLASSIFIER), args, train_dataset={"a": _rows()})


class TestLabels:
    @pytest.mark.parametrize("others", [{}, {"a": _rows()}])
    def test_a_renamed_column_is_named_with_those_that_are_there(self, tmp_path: Path, others: dict[str, Any]) -> None:
        message = r"Stream 'b': a micro-batch of it has \['input_ids', 'attention_mask'\], but Bert"
        with pytest.raises(ValueError, match=message) as caught:
            _trainer(tmp_path, {**others, "b": _rows("target")})
        assert "columns ['input_ids', 'attention_mask', 'target', 'text']: rename" in str(caught.value)

    def test_so_is_one_that_code_leaves_out(self, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match=r"Stream 'a': .* the columns \['number', 'input_ids', 'attention_mask'\]"):
            _trainer(tmp_path, {"a": Unlabelled(5, 1)}, model=build_model("llama"))

    def test_what_makes_them_or_does_without_goes(self, tmp_path: Path) -> None:
        def labelled(sample: dict[str, Tensor]) -> dict[str, Tensor]:
            return {**sample, "labels": sample["input_ids"]}

        def mean(outputs: Any, labels: Any, **options: Any) -> Tensor:
            return outputs["logits"].mean()

        stream = Stream("a", Unlabelled(5, 1), preprocess=labelled)
        _trainer(tmp_path / "made", [stream], model=build_model("llama"))
        _trainer(tmp_path / "own", {"a": Unlabelled(5, 1)}, model=build_model("llama"), compute_loss_func=mean)

    def test_of_a_model_of_the_users_it_is_a_warning(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        trainer = _trainer(tmp_path, {"a": _rows("target")}, {"max_steps": 1}, model=OwnModel())
        assert [record.message[:12] for record in _warnings(caplog)] == ["Stream 'a': "]
        assert "OwnModel needs labels for its loss" in caplog.text
        trainer.train()


class TestEvaluation:
    EVALUATES = {"eval_strategy": "steps", "eval_steps": 1}  # noqa: RUF012

    @pytest.mark.parametrize("name", ["a", ""])
    def test_an_empty_set_is_refused(self, tmp_path: Path, name: str) -> None:
        empty = _rows().select([])
        called = r"eval_dataset\['a'\]" if name else "eval_dataset"
        with pytest.raises(ValueError, match=f"^{called} is empty, .* set eval_strategy='no'"):
            _trainer(tmp_path, {"a": _rows()}, self.EVALUATES, eval_dataset={"a": empty} if name else empty)
        _trainer(tmp_path, {"a": _rows()}, eval_dataset={"a": empty})

    def test_one_without_labels_is_told(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        sets = {"a": _rows(), "b": _rows("target"), "held out": _rows("answer")}
        _trainer(tmp_path, {"a": _rows(), "b": _rows()}, self.EVALUATES, eval_dataset=sets)
        told = [record.message for record in _warnings(caplog)]
        assert len(told) == 2
        assert told[0].startswith("eval_dataset['b'] has no loss: a micro-batch of it has ['input_ids'")
        assert "'answer', 'text']: rename" in told[1]


class TestFunctions:
    @pytest.mark.parametrize("function", [lambda step: [1], lambda step, weights, more: weights, lambda *, step: [1]])
    def test_one_that_takes_something_else_is_refused(self, function: Callable[..., Any]) -> None:
        with pytest.raises(
            TypeError, match=r"mixing: a function is called as f\(step, weights\), but this one takes \("
        ):
            Function(function)
        with pytest.raises(TypeError, match=r"batch_size: a function is called as f\(step, batch_size\), but this one"):
            SizeFunction(function)

    @pytest.mark.parametrize("function", [lambda *given: given[1], lambda step, weights, more=1: weights, max])
    def test_one_that_can_be_called_so_goes(self, function: Callable[..., Any]) -> None:
        Function(function)
        SizeFunction(function)


class TestBatches:
    @pytest.mark.parametrize(("batch_size", "is_told"), [(6, True), (7, False)])
    def test_one_smaller_than_the_number_of_streams_is_told_once(
        self, tmp_path: Path, batch_size: int, is_told: bool, caplog: pytest.LogCaptureFixture
    ) -> None:
        trainer = _trainer(tmp_path, {f"s{number}": _rows() for number in range(7)}, batch_size=batch_size)
        told = [record.message for record in _warnings(caplog)]
        assert len(told) == is_told
        assert not told or told[0].startswith("batch_size=6 is smaller than the number of streams, 7: no step has all")
        trainer.train()
        seen = trainer.ledger.to_pandas().groupby("stream")["count"].sum()
        assert seen.max() - seen.min() <= 1


class TestCollators:
    def _collate(self, samples: list[dict[str, Any]]) -> dict[str, Tensor]:
        ids = torch.tensor([list(sample["input_ids"]) for sample in samples])
        return {"input_ids": ids, "labels": torch.tensor([len(sample["text"]) for sample in samples])}

    @pytest.mark.parametrize("names", ["a", "ab"])
    def test_the_columns_that_were_removed_are_named(self, tmp_path: Path, names: str) -> None:
        trainer = _trainer(tmp_path, {name: _rows() for name in names}, data_collator=self._collate)
        with pytest.raises(KeyError, match="text") as caught:
            trainer.train()
        notes = "\n".join(caught.value.__notes__)
        assert "remove_unused_columns=True removed the columns ['text'], which the model's forward does not" in notes
        assert "several streams" not in notes

    def test_so_are_those_of_samples_that_code_makes(self, tmp_path: Path) -> None:
        rows = [{**row, "text": "a"} for row in _rows("other")]
        trainer = _trainer(tmp_path, {"a": rows}, data_collator=self._collate)
        with pytest.raises(KeyError, match="text") as caught:
            trainer.train()
        assert any("removed the columns ['other', 'text']" in note for note in caught.value.__notes__)

    def test_where_none_is_removed_nothing_is_said_of_it(self, tmp_path: Path) -> None:
        rows = _rows().remove_columns("text")
        trainer = _trainer(tmp_path, {"a": rows}, {"remove_unused_columns": False}, data_collator=self._collate)
        with pytest.raises(KeyError, match="text") as caught:
            trainer.train()
        assert not any("remove_unused_columns" in note for note in caught.value.__notes__)


@pytest.mark.parametrize("there", [False, True])
def test_what_is_no_checkpoint_is_told_in_the_trainers_words(tmp_path: Path, there: bool) -> None:
    path = tmp_path / "run" / "checkpoint-3"
    if there:
        path.mkdir(parents=True)
    with pytest.raises(ValueError, match=rf"Can't find a valid checkpoint at {path}: .*start over without"):
        _trainer(tmp_path / "run", {"a": _rows()}).train(resume_from_checkpoint=str(path))


def _warnings(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return [record for record in caplog.records if record.levelno == logging.WARNING and "mixer" in record.name]
