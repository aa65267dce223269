"""What a run has found out of its losses goes on with it: a resumed run is the uninterrupted one to the bit."""

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.helpers import weights_of
from tests.losses import LOSSES, padded, ragged, small_model
from tests.mixer.trainer.runs import train

_ROWS = ragged(24, 1)


def _run(folder: Path, name: str, resume: Any = None) -> Any:
    own = {"per_device_train_batch_size": 3, "max_steps": 4, "save_strategy": "steps", "save_steps": 2}
    own |= {"batch_size": 8, "data_collator": padded, "compute_loss_func": LOSSES[name][0]}
    return train(folder, small_model(), resume, train_dataset={"a": _ROWS[:10], "b": _ROWS[10:]}, **own)


@pytest.mark.parametrize("name", ["mean of rows' means", "focal, mean over tokens", "in-batch contrastive"])
def test_a_resumed_run_is_the_same(name: str, tmp_path: Path) -> None:
    whole = _run(tmp_path, name)
    resumed = _run(tmp_path, name, tmp_path / "checkpoint-2")
    assert torch.equal(weights_of(whole.model), weights_of(resumed.model))
    assert whole.ledger.to_pandas()["loss"].notna().sum() == resumed.ledger.to_pandas()["loss"].notna().sum()
