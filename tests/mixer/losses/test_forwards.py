"""A run makes the forwards of its training and no other; what it knows of its loss may be declared."""

from pathlib import Path
from typing import Any

import pytest
from torch import nn

from mixer.trainer.loss_kinds import LossKinds
from tests.helpers import MODEL_DATA, arguments, build_model, three_streams
from tests.losses import padded, ragged, small_model
from tests.mixer.trainer.runs import train
from tests.refusals import refused


def counted(model: nn.Module) -> list[int]:
    """The forwards of a model from now on."""
    forwards: list[int] = []
    model.register_forward_pre_hook(lambda *_: forwards.append(1))
    return forwards


@pytest.mark.parametrize("name", ["llama", "bert-classifier"])
def test_two_steps_are_two_forwards(name: str, tmp_path: Path) -> None:
    forwards = counted(model := build_model(name))
    train(tmp_path, model, train_dataset=three_streams(MODEL_DATA[name]), max_steps=2)
    assert len(forwards) == 2


@pytest.mark.parametrize("loss_type", ["nll", "dft", "chunked_nll"])
def test_two_steps_of_sft_are_two_forwards(loss_type: str, tmp_path: Path) -> None:
    cases: Any = pytest.importorskip("tests.mixer.trainer.trl.cases")
    trainer = cases.sft(tmp_path, cases.two_chats(), max_steps=2, loss_type=loss_type)
    forwards = counted(trainer.model)
    trainer.train()
    assert len(forwards) == 2


def test_a_declared_loss_is_not_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LossKinds, "_findings", None)
    rows = ragged(12, 1)
    own = {"data_collator": padded, "per_device_train_batch_size": 3, "batch_size": 6, "loss_reduction": "items"}
    trainer = train(tmp_path, small_model(), train_dataset={"a": rows[:5], "b": rows[5:]}, **own)
    assert trainer.ledger.to_pandas()["loss"].notna().all()


def test_another_declaration_is_refused(tmp_path: Path) -> None:
    with refused("loss_reduction"):
        arguments(tmp_path, loss_reduction="average")
