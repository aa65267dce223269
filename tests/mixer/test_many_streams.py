"""Hundreds of streams: what the Trainer's own state keeps of them."""

from pathlib import Path
from typing import Any

import pytest
from transformers import TrainerCallback

from mixer import MixingTrainer
from mixer.trainer import MOST_STREAMS_IN_HISTORY
from tests.helpers import Tokens, arguments, build_model


class _Told(TrainerCallback):
    def __init__(self) -> None:
        self.logs: list[dict[str, Any]] = []

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        self.logs.append(dict(logs))


@pytest.mark.parametrize("is_beyond", [False, True])
def test_the_history_keeps_single_streams_only_where_they_are_not_too_many(tmp_path: Path, is_beyond: bool) -> None:
    num_streams = MOST_STREAMS_IN_HISTORY + is_beyond
    names, rows = [f"s{number}" for number in range(num_streams)], Tokens(4, 1)
    told = _Told()
    args = arguments(tmp_path, max_steps=2, logging_strategy="steps", logging_steps=1)
    trainer = MixingTrainer(build_model("llama"), args, train_dataset=dict.fromkeys(names, rows), callbacks=[told])
    trainer.train()
    updates = [entry for entry in trainer.state.log_history if "loss" in entry]
    of_streams = {f"{what}/{name}" for what in ("coverage", "weight", "count") for name in names}
    assert len(updates) == 2
    for entry, logs in zip(updates, told.logs, strict=False):
        assert {"loss", "learning_rate", "train_coverage", "batch_size", "step"} <= entry.keys()
        assert of_streams <= logs.keys()
        assert bool(of_streams & entry.keys()) != is_beyond
        assert {key: value for key, value in logs.items() if key in entry} == {
            key: value for key, value in entry.items() if key in logs
        }
    assert trainer.ledger.to_pandas().groupby("step").size().tolist() == [num_streams] * 2
