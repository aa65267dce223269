"""Streams and evaluation sets without a label that counts, and the best model beside losses that are not finite."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from torch import Tensor
from transformers import EarlyStoppingCallback

from mixer.utils.errors import InvalidTypeError
from tests.helpers import MODEL_DATA, InOrder, Tokens, weights_of
from tests.mixer.trainer.runs import make
from tests.refusals import refused

KIND = "sequence-classification"
EVALUATES = {"eval_strategy": "steps", "eval_steps": 1}
SAVES = {"save_strategy": "steps", "save_steps": 1, "load_best_model_at_end": True, **EVALUATES}


class Unlabelled(Tokens):
    """Rows whose labels are all ignored, but for one row in so many."""

    every = 0

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        row = dict(super().__getitem__(index))
        is_labelled = self.every and index % self.every == self.every - 1
        return row if is_labelled else {**row, "labels": torch.full_like(row["labels"], -100)}


class Sparse(Unlabelled):
    every = 20


def _trainer(folder: Path, data: Any, model: str = "bert-classifier", **options: Any) -> Any:
    return make(folder, model, train_dataset=data, **options)


def _told(caplog: pytest.LogCaptureFixture, words: str) -> list[str]:
    return [record.getMessage() for record in caplog.records if words in record.getMessage()]


@pytest.mark.parametrize("model", ["bert-classifier", "llama"])
def test_a_stream_without_labels_is_told_once(tmp_path: Path, model: str, caplog: pytest.LogCaptureFixture) -> None:
    kind = MODEL_DATA[model]
    data = {"good": Tokens(12, 1, kind), "bare": Unlabelled(12, 2, kind)}
    trainer = _trainer(tmp_path, data, model, max_steps=6)
    trainer.train()
    [told] = _told(caplog, "nothing is learned from it")
    assert told.startswith("Stream 'bare'")
    assert torch.isfinite(weights_of(trainer.model)).all()


def test_sparse_labels_are_labels(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    _trainer(tmp_path, {"good": Tokens(40, 1, KIND), "sparse": Sparse(40, 2, KIND)}, max_steps=10).train()
    assert not _told(caplog, "nothing is learned")


def test_rows_without_end_are_told_after_a_hundred(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    data = {"good": InOrder(Tokens(130, 1, KIND)), "bare": InOrder(Unlabelled(130, 3, KIND))}
    _trainer(tmp_path, data, mixing="Uniform", batch_size=32, per_device_train_batch_size=32, max_steps=8).train()
    [told] = _told(caplog, "nothing is learned from it")
    assert "none of its 112 samples" in told  # 16 in a step


@pytest.mark.parametrize("names", ["a", "ab"])
def test_a_run_without_any_label_is_no_success(tmp_path: Path, names: str, caplog: pytest.LogCaptureFixture) -> None:
    trainer = _trainer(tmp_path, {name: Unlabelled(8, 1, KIND) for name in names}, max_steps=len(names))
    before = weights_of(trainer.model).clone()
    with refused("labels"):
        trainer.train()
    assert torch.equal(before, weights_of(trainer.model))
    assert [told[:10] for told in _told(caplog, "nothing is learned")] == [f"Stream '{name}'" for name in names]


def test_sets_without_labels_choose_no_model(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    sets = {"good": Tokens(6, 4, KIND), "bare": Unlabelled(6, 3, KIND)}
    trainer = _trainer(tmp_path, {"a": Tokens(12, 1, KIND)}, eval_dataset=sets, **SAVES)
    [told] = _told(caplog, "has no loss")
    assert told.startswith("eval_dataset['bare']")
    trainer.train()
    losses = [entry["eval_good_loss"] for entry in trainer.state.log_history if "eval_good_loss" in entry]
    assert trainer.state.best_metric == min(losses)
    assert trainer.state.best_global_step == losses.index(min(losses)) + 1


def test_a_set_without_labels_alone_leaves_no_best_model(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    bare = Unlabelled(6, 3, KIND)
    trainer = _trainer(tmp_path, {"a": Tokens(12, 1, KIND)}, eval_dataset=bare, **SAVES)
    trainer.train()
    assert len(_told(caplog, "eval_dataset has no loss")) == 1
    assert len(_told(caplog, "metric_for_best_model='loss' is nan")) == 1
    assert (trainer.state.best_metric, trainer.state.best_model_checkpoint) == (None, None)
    state = (tmp_path / "checkpoint-3" / "trainer_state.json").read_text()
    assert json.loads(state)["best_metric"] is None


@pytest.mark.parametrize(
    ("values", "greater", "best"),
    [
        ([math.nan, 0.5, 0.7, math.nan], True, 3),
        ([math.nan, 0.5, 0.7, math.nan], False, 2),
        ([math.inf, math.nan, 0.5, 0.4], True, 3),
        ([-math.inf, 0.5, math.nan, 0.7], False, 2),
    ],
)
def test_infinite_values_are_passed_over(tmp_path: Path, values: list[float], greater: bool, best: int) -> None:
    left = iter(values)
    trainer = _trainer(
        tmp_path,
        {"a": Tokens(12, 1, KIND)},
        callbacks=[EarlyStoppingCallback(early_stopping_patience=3)],
        eval_dataset=Tokens(6, 4, KIND),
        compute_metrics=lambda prediction: {"score": next(left)},
        metric_for_best_model="score",
        greater_is_better=greater,
        **{**SAVES, "max_steps": 4},
    )
    trainer.train()
    assert trainer.state.global_step == 4
    assert trainer.state.best_global_step == best
    assert trainer.state.best_metric == values[best - 1]


@pytest.mark.parametrize(
    "found", [torch.zeros(3).numpy(), 0.5, None, [("a", 1)], {"score": torch.zeros(3).numpy()}, {1: 0.5}]
)
def test_metrics_are_numbers_by_name(tmp_path: Path, found: Any) -> None:
    options = {"eval_dataset": {"b": Tokens(6, 4, KIND)}, "compute_metrics": lambda prediction: found, **EVALUATES}
    trainer = _trainer(tmp_path, {"a": Tokens(12, 1, KIND)}, save_strategy="steps", save_steps=1, **options)
    with refused("compute_metrics", InvalidTypeError, stream="b"):
        trainer.train()


@pytest.mark.parametrize("below", ["", "run"])
def test_an_output_folder_that_is_a_file_is_refused(tmp_path: Path, below: str) -> None:
    (tmp_path / "file").write_text("")
    with refused("output_dir"):
        _trainer(tmp_path / "file" / below, Tokens(4, 1, KIND))


def test_raw_texts_are_refused_before_the_first_step(tmp_path: Path) -> None:
    raw, good = Dataset.from_dict({"text": ["good", "bad"], "label": [1, 0]}), Tokens(6, 4, KIND)
    with refused("columns", stream="raw") as info:
        _trainer(tmp_path, {"raw": raw})
    assert "['text', 'label']" in str(info.value)
    with refused("columns", stream="a") as info:
        _trainer(tmp_path, {"a": good}, eval_dataset={"raw": raw}, **EVALUATES)
    assert "eval_dataset['raw']" in str(info.value)
