"""How like the gradients of new samples are to those of entries, against autograd."""

from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
import torch
from transformers import DataCollatorWithFlattening

import replay.feeding.gradient_scores
from mixer import MixingTrainer
from replay import InMemory, ReplayBuffer, ReplayRatio
from replay.selection import GradientDiversity
from tests.helpers import Tokens, arguments, build_model, weights_of
from tests.replay.methods.runs import Classifier, Points, gradient_of, make_trainer


def _gradient(model: torch.nn.Module, row: dict[str, torch.Tensor]) -> torch.Tensor:
    output = model(**{name: torch.as_tensor(value).unsqueeze(0) for name, value in row.items()})
    loss = output["loss"]
    return torch.cat([own.flatten() for own in gradient_of(model, loss)])


@pytest.mark.parametrize(("most_rows", "kind"), [(32, "points"), (2, "points"), (32, "llama")])
def test_scores_are_the_largest_cosines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most_rows: int, kind: str
) -> None:
    monkeypatch.setattr(replay.feeding.gradient_scores, "_MOST_ROWS", most_rows)
    data: Any = Points() if kind == "points" else Tokens(60, 1)
    model = Classifier() if kind == "points" else build_model("llama").double()
    buffer = ReplayBuffer(20, GradientDiversity(num_compared=4))
    trainer = make_trainer(tmp_path, model=model, new=data, buffer=buffer, max_steps=4)
    scorer, found = buffer.feeding.scorer, []

    def checked(batch: Any, offered: Any) -> np.ndarray:
        before = [None if p.grad is None else p.grad.clone() for p in model.parameters()], torch.get_rng_state()
        scores = scorer(batch, offered)
        assert torch.equal(torch.get_rng_state(), before[1])
        for parameter, gradient in zip(model.parameters(), before[0], strict=True):
            assert (parameter.grad is None) == (gradient is None)
        slots = scorer._compared_slots()
        if not len(slots):
            assert np.isnan(scores).all()
        else:
            entries = torch.stack([_gradient(model, buffer[slot]) for slot in slots.tolist()])
            cursor = trainer.mixing.planner.cursors[0]
            for number, score in enumerate(scores.tolist()):
                _, _, positions = next(offered.by_stream(np.array([number])))
                own = _gradient(model, data[int(cursor.references(positions)[0])])
                cosines = entries @ own / entries.norm(dim=1) / own.norm()
                assert score == pytest.approx(float(cosines.max()), abs=1e-5)
        found.append(scores)
        return scores

    buffer.feeding.scorer = checked
    checked.prepare = scorer.prepare  # type: ignore[attr-defined]  # as the scorer has it
    trainer.train()
    assert len(found) == 4
    assert not np.isnan(found[-1]).any()


def test_training_is_what_it_is_without_scores(tmp_path: Path) -> None:
    def weights(selection: Any) -> torch.Tensor:
        trainer = make_trainer(tmp_path, buffer=ReplayBuffer(200, selection), max_steps=4)
        trainer.train()
        return weights_of(trainer.model)

    assert torch.equal(weights(GradientDiversity()), weights("Reservoir"))


def test_rows_of_iterable_streams_are_scored(tmp_path: Path) -> None:
    data = Points()
    rows = [{"x": row["x"].tolist(), "labels": int(row["labels"])} for row in data]
    buffer = ReplayBuffer(9, GradientDiversity(3), storage=InMemory())

    def collate(samples: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        x = torch.tensor([sample["x"] for sample in samples], dtype=torch.float64)
        return {"x": x, "labels": torch.tensor([sample["labels"] for sample in samples])}

    trainer = MixingTrainer(
        Classifier(),
        arguments(tmp_path, max_steps=5),
        collate,
        {"new": datasets.Dataset.from_list(rows).to_iterable_dataset(), "memory": buffer},
        mixing=ReplayRatio(0.4),
        batch_size=7,
    )
    trainer.train()
    assert len(buffer) == 9


def test_a_model_that_cannot_be_read_is_refused_at_the_start(tmp_path: Path) -> None:
    class Odd(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(6, 3, dtype=torch.float64))

        def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
            logits = x @ self.weight
            return {"loss": torch.nn.functional.cross_entropy(logits, labels), "logits": logits}

    trainer = make_trainer(tmp_path, model=Odd(), buffer=ReplayBuffer(9, "GradientDiversity"))
    with pytest.raises(ValueError, match=r"Linear"):
        trainer.train()


def test_packed_rows_are_refused(tmp_path: Path) -> None:
    rows = [{"input_ids": row["input_ids"][:5].tolist()} for row in Tokens(30, 1).rows]
    trainer = MixingTrainer(
        build_model("llama"),
        arguments(tmp_path),
        DataCollatorWithFlattening(),
        {"new": rows, "memory": ReplayBuffer(9, "GradientDiversity")},
        mixing=ReplayRatio(0.3),
    )
    with pytest.raises(ValueError, match="needs a row for each sample, but the data_collator packs them"):
        trainer.train()
