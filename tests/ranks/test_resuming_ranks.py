import json
from pathlib import Path
from typing import Any

import pytest

from mixer import Ledger
from tests.mixer.trainer.checkpointing.test_resume import build
from tests.ranks.launch import results_of
from tests.ranks.warm import launch_warm


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("resuming")
    launch_warm("resume_worker.py", path)
    return path


@pytest.fixture(scope="module")
def results(folder: Path) -> list[dict[str, Any]]:
    return results_of(folder, "results")


def test_killed_runs_of_two_ranks_end_as_one_that_was_not(results: list[dict[str, Any]]) -> None:
    assert [result["kills"] for result in results] == [[], []]


def test_errors_reach_all_ranks(results: list[dict[str, Any]]) -> None:
    assert results[0]["errors"] == results[1]["errors"]
    nothing, torn = results[0]["errors"]
    assert nothing.startswith("No valid checkpoint found in output directory")
    assert "rng_state_1.pth is torn: it has 4 bytes instead of" in torn
    assert "The newest checkpoint that can be resumed from is" in torn


def test_all_ranks_choose_alike(results: list[dict[str, Any]]) -> None:
    assert [result["choice"] for result in results] == ["checkpoint-10", "checkpoint-10"]


def test_one_rank_goes_on_from_a_checkpoint_of_two(folder: Path) -> None:
    whole = Ledger(folder / "epochs" / "ledger").to_pandas()
    saved = folder / "epochs" / "checkpoint-5"
    losses = json.loads((saved / "mixing.json").read_text())["progress"]["running_losses"]
    assert len(losses) == 2
    trainer = build(folder / "epochs", "epochs")
    trainer.train(resume_from_checkpoint=str(saved))
    rows = trainer.ledger.to_pandas()
    assert rows["step"].tolist() == whole["step"].tolist()
    assert rows.query("step <= 5").equals(whole.query("step <= 5"))
    logged = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert logged[0] == pytest.approx(sum(losses) / 2 / 5, rel=1e-6)
