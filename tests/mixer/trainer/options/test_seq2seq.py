"""Encoder-decoder models: as by the Seq2SeqTrainer with one data set, and by stream with several."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import DataCollatorForSeq2Seq, Seq2SeqTrainer

from mixer import MixingMixin, MixingSeq2SeqTrainer
from tests.helpers import weights_of
from tests.mixer.trainer.runs import as_drawn
from tests.seq2seq import arguments, model, pairs, tokenizer


def _share_right(prediction: Any) -> dict[str, float]:
    size = min(prediction.predictions.shape[1], prediction.label_ids.shape[1])
    same = prediction.predictions[:, :size] == prediction.label_ids[:, :size]
    return {"right": float(np.mean(same)), "length": float(prediction.predictions.shape[1])}


def _trainer(kind: type, folder: Path, data: Any = None, name: str = "t5", **options: Any) -> Any:
    net, sets = model(name), pairs(7, 9)
    if data is None:
        data, sets = {"a": pairs(12, 1), "b": pairs(9, 2)}, {"a": pairs(5, 8), "b": pairs(3, 9)}
    collator = DataCollatorForSeq2Seq(tokenizer(), net)
    return kind(net, arguments(folder, **options), collator, data, sets, tokenizer(), compute_metrics=_share_right)


@pytest.mark.parametrize("name", ["t5", "bart"])
def test_one_data_set_is_trained_as_by_the_seq2seq_trainer(name: str, tmp_path: Path) -> None:
    options = {"max_steps": -1, "num_train_epochs": 1, "eval_strategy": "epoch", "label_smoothing_factor": 0.1}
    options |= {"predict_with_generate": True, "generation_max_length": 9}
    data = pairs(19, 1)
    ours = _trainer(MixingSeq2SeqTrainer, tmp_path / "ours", data, name, **options)
    options["train_sampling_strategy"] = "sequential"  # the Trainer gets the samples in our order
    stock = _trainer(Seq2SeqTrainer, tmp_path / "stock", as_drawn(data), name, **options)
    for trainer in (stock, ours):
        trainer.train()
    assert torch.equal(weights_of(stock.model), weights_of(ours.model))
    for mine, theirs in zip(ours.state.log_history, stock.state.log_history, strict=True):
        for key in theirs:
            assert key.endswith(("_runtime", "_per_second")) or mine[key] == pytest.approx(theirs[key], abs=1e-6)
    assert "eval_right" in stock.state.log_history[-2]


def test_streams_have_losses_items_and_metrics_of_their_own(tmp_path: Path) -> None:
    options = {"eval_strategy": "epoch", "predict_with_generate": True, "max_steps": -1, "num_train_epochs": 1}
    trainer = _trainer(MixingSeq2SeqTrainer, tmp_path, **options)
    trainer.train()
    assert not trainer._parts.run.splitting.by_stream
    rows = trainer.ledger.to_pandas()
    for step, of_step in rows[rows["items"] > 0].groupby("step"):
        logged = next(entry["loss"] for entry in trainer.state.log_history if entry["step"] == step)
        mean = (of_step["loss"] * of_step["items"]).sum() / of_step["items"].sum()
        assert mean == pytest.approx(logged, abs=1e-5)
    labels = {stream.name: sum(map(len, stream.dataset["labels"])) for stream in trainer.streams}
    assert rows.groupby("stream")["items"].sum().to_dict() == labels
    evaluated = {key for entry in trainer.state.log_history for key in entry}
    assert {"eval_a_loss", "eval_b_loss", "eval_a_right", "eval_b_length", "eval_worst_loss"} <= evaluated
    assert len(trainer.ledger.evaluations()) == 2


class _Own(Seq2SeqTrainer):  # type: ignore[misc]
    pass


class _Mixed(MixingMixin, _Own):
    pass


@pytest.mark.parametrize("kind", [MixingSeq2SeqTrainer, _Mixed])
def test_options_for_generation_hold_for_each_set_and_for_predictions(kind: type, tmp_path: Path) -> None:
    trainer = _trainer(kind, tmp_path, predict_with_generate=True, generation_max_length=9)
    asked, generate = [], trainer.model.generate

    def watched(*args: Any, **kwargs: Any) -> Any:
        asked.append((kwargs.get("num_beams"), kwargs.get("max_length")))
        return generate(*args, **kwargs)

    trainer.model.generate = watched
    metrics = trainer.evaluate(num_beams=2, max_length=6)
    assert {"eval_a_loss", "eval_b_loss", "eval_loss", "eval_worst_loss"} <= metrics.keys()
    trainer.evaluate()  # nothing of it is left
    output = trainer.predict(pairs(4, 5), num_beams=2, max_length=6)
    assert asked == [(2, 6), (2, 6), (None, 9), (None, 9), (2, 6)]
    assert output.predictions.shape[0] == 4
    assert "test_right" in output.metrics
