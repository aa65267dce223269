"""Steps of one stream each on two ranks."""

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.helpers import weights_of
from tests.mixer.trainer.runs import train
from tests.ranks.warm import on_ranks

OPTIONS: dict[str, Any] = {"max_steps": -1, "num_train_epochs": 2, "one_stream_per": "step"}


def on_a_rank(folder: Path) -> dict[str, Any]:
    trainer = train(folder, per_device_train_batch_size=4, **OPTIONS)
    return {"weights": weights_of(trainer.model).tolist(), "seen": trainer.mixing.seen.tolist()}


def test_two_ranks_take_the_steps_of_one(tmp_path: Path) -> None:
    alone = train(tmp_path / "alone", per_device_train_batch_size=8, **OPTIONS)
    for result in on_ranks(tmp_path, on_a_rank):
        assert result["on_a_rank"]["seen"] == alone.mixing.seen.tolist()
        assert result["on_a_rank"]["weights"] == pytest.approx(weights_of(alone.model).tolist(), rel=1e-4, abs=1e-6)
    assert torch.isfinite(weights_of(alone.model)).all()
