"""Collators that return another number of rows than they got: fewer, more, or what is no row at all."""

from collections import UserDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import default_data_collator

from mixer.run.config import NonFinite
from tests.helpers import MODEL_DATA, GradientRecorder, Tokens, build_model
from tests.mixer.trainer.runs import train

Collator = Callable[[list[Any]], Any]


def _marked(num_samples: int, seed: int, kind: str, marked: set[int]) -> Tokens:
    data = Tokens(num_samples, seed, kind)
    for number, row in enumerate(data.rows):
        row["marked"] = torch.tensor(number in marked)
    return data


def _bare(samples: list[Any]) -> list[Any]:
    return [{name: value for name, value in row.items() if name != "marked"} for row in samples]


def without_marked(samples: list[Any]) -> Any:
    return default_data_collator(_bare([row for row in samples if not row["marked"]]))


def marked_twice(samples: list[Any]) -> Any:
    return default_data_collator(_bare([row for row in samples for _ in range(1 + int(row["marked"]))]))


def without_last(samples: list[Any]) -> Any:
    return default_data_collator(_bare(samples[:-1]))


def streams(kind: str) -> dict[str, Tokens]:
    return {"a": _marked(9, 1, kind, {2, 3}), "b": _marked(5, 2, kind, {1})}


def trained(
    folder: Path, collator: Collator, model: str, nonfinite: NonFinite = "raise", size: int = 16, **args: Any
) -> Any:
    own = {"train_dataset": streams(MODEL_DATA[model]), "data_collator": collator, "nonfinite": nonfinite}
    own |= {"callbacks": [recorder := GradientRecorder()], "remove_unused_columns": False}
    return train(folder, model, per_device_train_batch_size=size, **own, **args), recorder.gradients


def _told(caplog: pytest.LogCaptureFixture, collator: Collator) -> list[str]:
    found = f"data_collator={collator.__qualname__} made"
    return [record.getMessage() for record in caplog.records if found in record.getMessage()]


@pytest.mark.parametrize("model", ["bert-classifier", "bert-tokens", "bert-regression", "llama"])
@pytest.mark.parametrize(("collator", "num_rows"), [(without_marked, 11), (marked_twice, 17)])
def test_the_gradient_is_that_of_all_rows_together(tmp_path, model, collator, num_rows, caplog) -> None:
    trainer, gradients = trained(tmp_path, collator, model, max_steps=1)
    plain = build_model(model)
    rows = [row for stream in trainer.streams for row in stream.dataset.rows]
    plain(**collator(rows)).loss.backward()
    expected = torch.cat([parameter.grad.flatten() for parameter in plain.parameters()])
    torch.testing.assert_close(gradients[0], expected, rtol=1e-4, atol=1e-6)
    [told] = _told(caplog, collator)
    assert f"{num_rows} rows of 14 samples" in told
    losses = trainer.ledger.to_pandas()["loss"]
    assert losses.notna().all() if collator is marked_twice else losses.isna().all()


@pytest.mark.parametrize("nonfinite", ["skip", "warn", "raise"])
def test_steps_of_fewer_rows_are_steps(tmp_path: Path, nonfinite: NonFinite, caplog: pytest.LogCaptureFixture) -> None:
    trainer, gradients = trained(tmp_path, without_marked, "bert-classifier", nonfinite, size=4, max_steps=7)
    assert len(gradients) == trainer.state.global_step
    assert min(gradient.norm() for gradient in gradients) > 1e-3
    assert len(_told(caplog, without_marked)) == 1
    assert not [record for record in caplog.records if "not finite" in record.getMessage()]
    rows = trainer.ledger.to_pandas().groupby("step").agg({"count": "sum", "items": "sum", "loss": "count"})
    assert ((rows["loss"] > 0) == (rows["items"] == rows["count"])).all()
    assert 0 < (rows["loss"] > 0).sum() < len(rows)
    assert trainer.ledger.clock()["loss"].notna().all()


def test_a_collator_that_needs_several_samples_gets_them(tmp_path: Path) -> None:
    trainer, gradients = trained(tmp_path, without_last, "bert-classifier", size=4, max_steps=4)
    assert trainer.ledger.to_pandas().groupby("step")["items"].sum().tolist() == [3, 3, 3, 1]
    assert len(gradients) == 4


def as_user_dict(samples: list[Any]) -> Any:
    return UserDict(default_data_collator(_bare(samples)))


def with_common_positions(samples: list[Any]) -> Any:
    return {"position_ids": torch.arange(12)[None], **as_user_dict(samples)}


@pytest.mark.parametrize("collator", [as_user_dict, with_common_positions])
def test_rows_of_samples_are_told_apart(tmp_path: Path, collator: Collator, caplog: pytest.LogCaptureFixture) -> None:
    trainer, _ = trained(tmp_path, collator, "bert-classifier", max_steps=1)
    assert trainer.ledger.to_pandas()["loss"].notna().all()
    assert not _told(caplog, collator)
