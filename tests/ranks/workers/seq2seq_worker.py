"""What each rank does in the test of encoder-decoder models: `torchrun ... seq2seq_worker.py FOLDER`."""

import sys
from pathlib import Path
from typing import Any

from transformers import DataCollatorForSeq2Seq

from mixer import MixingSeq2SeqTrainer, Uniform
from tests.helpers import GradientRecorder
from tests.ranks.launch import end_with
from tests.seq2seq import arguments, model, pairs, tokenizer


def run(folder: Path, most_samples: int) -> dict[str, Any]:
    """Trains and evaluates; gives gradients, losses by stream and metrics."""
    net, recorder = model("t5"), GradientRecorder()
    trainer = MixingSeq2SeqTrainer(
        net,
        arguments(
            folder / "out",
            per_device_train_batch_size=most_samples,
            per_device_eval_batch_size=1,
            predict_with_generate=True,
        ),
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
    keys = ("eval_a_loss", "eval_b_loss", "eval_a_first", "eval_b_first")
    return {
        "gradients": [gradient.tolist() for gradient in recorder.gradients],
        "losses": trainer.ledger.to_pandas()["loss"].tolist() if trainer.is_world_process_zero() else [],
        "metrics": [metrics[key] for key in keys],
    }


if __name__ == "__main__":
    target = Path(sys.argv[1])
    end_with(run(target, 2), target, "seq2seq")
