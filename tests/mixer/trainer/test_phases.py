"""Phases of a run that are tied to its learning rate, as trained, resumed and simulated."""

from pathlib import Path
from typing import Any

from mixer import Scheduled, Stream
from tests.helpers import Tokens
from tests.mixer.trainer.runs import make
from tests.refusals import refused

WSD = {"lr_scheduler_type": "warmup_stable_decay", "lr_scheduler_kwargs": {"num_decay_steps": 3}}


def trainer(folder: Path, **changes: Any) -> Any:
    streams = [Stream("web", Tokens(40, 1)), Stream("best", Tokens(30, 2), enters_at="decay")]
    phases = Scheduled({"0": {"web": 1, "best": 1}, "decay": {"web": 1, "best": 3}})
    return make(folder, train_dataset=streams, mixing=phases, max_steps=8, **{**WSD, **changes})


def counts(trainer: Any) -> dict[str, list[int]]:
    rows = trainer.ledger.to_pandas()
    return {name: rows[rows["stream"] == name]["count"].tolist() for name in ("web", "best")}


def test_a_stream_enters_and_weights_change_where_the_learning_rate_begins_to_fall(tmp_path: Path) -> None:
    whole = trainer(tmp_path / "whole", save_strategy="steps", save_steps=6)
    whole.train()
    size = sum(counts(whole)["web"][:1])
    # Steps 0 to 4 before the decay of three steps.
    assert counts(whole) == {"web": [size] * 5 + [size // 4] * 3, "best": [0] * 5 + [size - size // 4] * 3}
    resumed = trainer(tmp_path / "whole")
    resumed.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-6"))
    assert counts(resumed) == counts(whole)


def test_a_learning_rate_that_never_falls_is_refused_at_construction(tmp_path: Path) -> None:
    with refused("enters_at"):
        trainer(tmp_path, lr_scheduler_type="constant", lr_scheduler_kwargs={})
