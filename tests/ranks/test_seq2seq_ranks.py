from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import DataCollatorForSeq2Seq

from mixer import MixingSeq2SeqTrainer, Uniform
from tests.helpers import GradientRecorder
from tests.ranks.warm import on_ranks
from tests.seq2seq import arguments, model, pairs, tokenizer


def run(most_samples: int, folder: Path) -> dict[str, Any]:
    net, recorder = model("t5"), GradientRecorder()
    sizes = {"per_device_train_batch_size": most_samples, "per_device_eval_batch_size": 1}
    trainer = MixingSeq2SeqTrainer(
        net,
        arguments(folder / "out", predict_with_generate=True, **sizes),
        DataCollatorForSeq2Seq(tokenizer(), net),
        {"a": pairs(12, 1), "b": pairs(9, 2)},
        # An even number each: the Seq2SeqTrainer counts the samples twice that fill the ranks up.
        {"a": pairs(4, 8), "b": pairs(2, 9)},
        tokenizer(),
        batch_size=9,
        mixing=Uniform(),
        callbacks=[recorder],
        compute_metrics=lambda prediction: {"first": float(prediction.predictions[:, 1].sum())},
    )
    trainer.train()
    metrics = trainer.evaluate(num_beams=2, max_length=6)
    losses = trainer.ledger.to_pandas()["loss"].tolist() if trainer.is_world_process_zero() else []
    keys = ("eval_a_loss", "eval_b_loss", "eval_a_first", "eval_b_first")
    return {"gradients": recorder.gradients, "losses": losses, "metrics": [metrics[key] for key in keys]}


@pytest.mark.full
def test_two_ranks_train_and_generate_as_one(tmp_path: Path) -> None:
    alone = run(64, tmp_path / "alone")
    results = [rank[2] for rank in on_ranks(tmp_path, partial(run, 2))]
    for rank in results:
        assert rank["metrics"] == pytest.approx(alone["metrics"], abs=1e-5)
        torch.testing.assert_close(rank["gradients"], alone["gradients"], rtol=0, atol=1e-6)
    assert results[0]["losses"] == pytest.approx(alone["losses"], abs=1e-5)
