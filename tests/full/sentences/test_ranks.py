"""The trainers of sentence-transformers on two ranks."""

from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("sentence_transformers", reason="needs the extra sentence-transformers")

from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss

from tests.full.sentences.cases import make, model_of, pairs, towards_a_target, weights_of
from tests.ranks.warm import on_ranks

pytestmark = pytest.mark.full


def train(folder: Path, **args: Any) -> Any:
    torch.set_num_threads(1)
    own = {"batch_sampler": "no_duplicates", "dataloader_drop_last": True, "max_steps": 6, "optim": "sgd", **args}
    trainer = make(
        folder, args=own, loss=MultipleNegativesRankingLoss, train_dataset={"a": pairs(1, 32), "b": pairs(2, 24)}
    )
    trainer.train()
    return trainer


def on_a_rank(folder: Path) -> dict[str, Any]:
    trainer = train(folder)
    return {"weights": weights_of(trainer.model).tolist(), "seen": trainer.mixing.seen.tolist()}


def test_two_ranks_train_as_one_process_that_accumulates_their_batches(tmp_path: Path) -> None:
    model_of("sentence", tmp_path)  # writes the folder that both ranks load
    alone = train(tmp_path / "alone", gradient_accumulation_steps=2)
    for result in on_ranks(tmp_path, on_a_rank):
        assert result["on_a_rank"]["seen"] == alone.mixing.seen.tolist()
        torch.testing.assert_close(
            torch.tensor(result["on_a_rank"]["weights"]), weights_of(alone.model), rtol=1e-5, atol=1e-6
        )


def by_auto(folder: Path) -> dict[str, Any]:
    torch.set_num_threads(1)
    trainer = towards_a_target(folder, max_steps=128, learning_rate=3e-4, per_device_train_batch_size=24)
    trainer.train()
    seen = trainer.mixing.seen.tolist()
    return {"weights": weights_of(trainer.model).tolist(), "mixture": dict(trainer.mixing.weights), "seen": seen}


def test_auto_moves_two_ranks_alike_towards_the_source_that_helps_a_target(tmp_path: Path) -> None:
    model_of("sentence", tmp_path)
    first, second = (result["by_auto"] for result in on_ranks(tmp_path, by_auto))
    assert first == second
    assert first["mixture"]["near"] > 0.6
    assert sum(first["seen"]) == 128 * 48
