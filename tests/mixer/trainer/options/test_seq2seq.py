"""Encoder-decoder models: as by the Seq2SeqTrainer with one data set, and by stream with several."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import DataCollatorForSeq2Seq, Seq2SeqTrainer

from mixer import MixingMixin, MixingSeq2SeqTrainer, MixingTrainer, Order, Stream
from tests.helpers import weights_of
from tests.seq2seq import arguments, model, pairs, tokenizer


def _share_right(prediction: Any) -> dict[str, float]:
    size = min(prediction.predictions.shape[1], prediction.label_ids.shape[1])
    same = prediction.predictions[:, :size] == prediction.label_ids[:, :size]
    return {"right": float(np.mean(same)), "length": float(prediction.predictions.shape[1])}


def _trainer(kind: type, folder: Path, data: Any, name: str = "t5", **options: Any) -> Any:
    net = model(name)
    return kind(
        net,
        arguments(folder, **options),
        DataCollatorForSeq2Seq(tokenizer(), net),
        data,
        {"a": pairs(5, 8), "b": pairs(3, 9)} if isinstance(data, dict) else pairs(7, 9),
        tokenizer(),
        compute_metrics=_share_right,
    )


@pytest.mark.parametrize("name", ["t5", "bart"])
def test_one_data_set_is_trained_as_by_the_seq2seq_trainer(name: str, tmp_path: Path) -> None:
    options = {
        "max_steps": -1,
        "num_train_epochs": 1,
        "eval_strategy": "epoch",
        "predict_with_generate": True,
        "generation_max_length": 9,
        "label_smoothing_factor": 0.1,
    }
    data = pairs(19, 1)
    # The Trainer gets the samples in our order.
    in_order = data.select(Order(19, Stream("train", data).order_key(42)).indices(0, 19).tolist())
    stock = _trainer(
        Seq2SeqTrainer, tmp_path / "stock", in_order, name, train_sampling_strategy="sequential", **options
    )
    ours = _trainer(MixingSeq2SeqTrainer, tmp_path / "ours", data, name, **options)
    for trainer in (stock, ours):
        trainer.train()
    assert torch.equal(weights_of(stock.model), weights_of(ours.model))
    assert len(ours.state.log_history) == len(stock.state.log_history)
    for mine, theirs in zip(ours.state.log_history, stock.state.log_history, strict=True):
        for key in theirs:
            if not key.endswith(("_runtime", "_per_second")):
                assert mine[key] == pytest.approx(theirs[key], abs=1e-6)
    assert "eval_right" in stock.state.log_history[-2]


def test_streams_have_losses_and_metrics_of_their_own(tmp_path: Path) -> None:
    options = {"eval_strategy": "steps", "eval_steps": 3, "predict_with_generate": True, "generation_max_length": 9}
    trainer = _trainer(MixingSeq2SeqTrainer, tmp_path, {"a": pairs(12, 1), "b": pairs(9, 2)}, **options)
    trainer.train()
    assert not trainer._parts.run.loader.by_stream
    rows = trainer.ledger.to_pandas()
    assert rows["loss"].notna().all()
    for step, of_step in rows.groupby("step"):
        logged = next(entry["loss"] for entry in trainer.state.log_history if entry["step"] == step)
        mean = (of_step["loss"] * of_step["items"]).sum() / of_step["items"].sum()
        assert mean == pytest.approx(logged, abs=1e-5)
    evaluated = {key for entry in trainer.state.log_history for key in entry}
    assert {"eval_a_loss", "eval_b_loss", "eval_a_right", "eval_b_length", "eval_worst_loss"} <= evaluated
    assert len(trainer.ledger.evaluations()) == 2


def test_every_label_is_an_item(tmp_path: Path) -> None:
    data = {"a": pairs(12, 1), "b": pairs(9, 2)}
    trainer = _trainer(MixingSeq2SeqTrainer, tmp_path, data, max_steps=-1, num_train_epochs=1)
    trainer.train()
    items = trainer.ledger.to_pandas().groupby("stream")["items"].sum().to_dict()
    assert items == {name: sum(map(len, data[name]["labels"])) for name in data}


class _Generating:
    """Writes down what is generated with."""

    asked: list[dict[str, Any]]

    def watch(self, trainer: Any) -> "_Generating":
        self.asked, generate = [], trainer.model.generate

        def watched(*args: Any, **kwargs: Any) -> Any:
            self.asked.append(kwargs)
            return generate(*args, **kwargs)

        trainer.model.generate = watched
        return self

    def options(self, name: str) -> list[Any]:
        return [call.get(name) for call in self.asked]


def test_options_for_generation_hold_for_each_set(tmp_path: Path) -> None:
    data = {"a": pairs(12, 1), "b": pairs(9, 2)}
    trainer = _trainer(MixingSeq2SeqTrainer, tmp_path, data, predict_with_generate=True, generation_max_length=9)
    watched = _Generating().watch(trainer)
    metrics = trainer.evaluate(num_beams=2, max_length=6)
    assert watched.options("num_beams") == [2, 2]
    assert watched.options("max_length") == [6, 6]
    assert {"eval_a_loss", "eval_b_loss", "eval_loss", "eval_worst_loss"} <= metrics.keys()
    watched.asked.clear()
    trainer.evaluate()  # nothing of it is left
    assert watched.options("num_beams") == [None, None]
    assert watched.options("max_length") == [9, 9]


def test_prediction_takes_them_too(tmp_path: Path) -> None:
    data = {"a": pairs(12, 1), "b": pairs(9, 2)}
    trainer = _trainer(MixingSeq2SeqTrainer, tmp_path, data, predict_with_generate=True)
    watched = _Generating().watch(trainer)
    output = trainer.predict(pairs(4, 5), num_beams=2, max_length=6)
    assert output.predictions.shape[0] == 4
    assert (watched.options("num_beams"), watched.options("max_length")) == ([2], [6])
    assert "test_right" in output.metrics


def test_a_trainer_of_ones_own_is_mixed_likewise(tmp_path: Path) -> None:
    class Own(Seq2SeqTrainer):  # type: ignore[misc]
        pass

    class Mixed(MixingMixin, Own):
        pass

    data = {"a": pairs(12, 1), "b": pairs(9, 2)}
    trainer = _trainer(Mixed, tmp_path, data, predict_with_generate=True)
    watched = _Generating().watch(trainer)
    trainer.evaluate(num_beams=3)
    assert watched.options("num_beams") == [3, 3]


def test_a_trainer_that_generates_nothing_takes_no_such_option(tmp_path: Path) -> None:
    trainer = _trainer(MixingTrainer, tmp_path, {"a": pairs(12, 1), "b": pairs(9, 2)})
    with pytest.raises(TypeError, match="num_beams"):
        trainer.evaluate(num_beams=2)
