"""Pushing to the Hub: what is in the repository can be used, and a run can go on from it."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import huggingface_hub
import pandas as pd
import pytest
import torch
import transformers.utils.hub
from huggingface_hub import HfApi, ModelCard
from transformers import AutoModelForCausalLM, Trainer

from mixer import Ledger, MixingTrainer
from mixer.checkpoint.checkpoint_files import STATE_FILE, find_problem
from tests.helpers import Tokens, weights_of
from tests.hub import Hub, running_hub
from tests.mixer.trainer import runs


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with running_hub(tmp_path / "hub") as running:
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(transformers.utils.hub, "_hf_api", HfApi(endpoint=running.url, token="secret"))
        yield running


def _trainer(folder: Path, **options: Any) -> MixingTrainer:
    own = {"push_to_hub": True, "hub_token": "secret", "save_strategy": "steps", "save_steps": 2, "max_steps": 4}
    sets = {"a": Tokens(4, 8), "b": Tokens(3, 9)}
    return runs.make(folder, **{**own, "eval_strategy": "steps", "eval_steps": 2, "eval_dataset": sets, **options})


def _train(folder: Path, **options: Any) -> MixingTrainer:
    trainer = _trainer(folder, **options)
    trainer.train()
    trainer._finish_current_push()
    return trainer


# What each pushes while a run trains: the folders of checkpoints in the repository.
STRATEGIES = {"end": None, "every_save": set(), "checkpoint": {"last-checkpoint"}}
STRATEGIES["all_checkpoints"] = {"checkpoint-2", "checkpoint-4"}


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_each_strategy_pushes_what_it_says(strategy: str, hub: Hub, tmp_path: Path) -> None:
    trainer = _train(tmp_path / "out", hub_strategy=strategy, hub_always_push=True)
    repository, checkpoints = hub.folder / "somebody" / "out", STRATEGIES[strategy]
    if checkpoints is None:
        assert hub.commits == []
        return
    assert torch.equal(weights_of(AutoModelForCausalLM.from_pretrained(repository)), weights_of(trainer.model))
    pd.testing.assert_frame_equal(Ledger(repository / "ledger").to_pandas(), trainer.ledger.to_pandas())
    assert {path.name for path in repository.glob("*checkpoint*")} == checkpoints
    for name in checkpoints:
        assert (repository / name / STATE_FILE).exists()
        assert find_problem(repository / name) is None


@pytest.mark.full
@pytest.mark.parametrize("always", [True, False])
def test_a_long_push_is_waited_for_or_not_and_pushes_no_file_that_grows(always: bool, hub: Hub, tmp_path: Path) -> None:
    class Slow(MixingTrainer):
        def _push_from_checkpoint(self, checkpoint_folder: str) -> None:
            super()._push_from_checkpoint(checkpoint_folder)
            if checkpoint_folder.endswith("4"):
                hub.opens.set()

    hub.opens.clear()
    _trainer(tmp_path / "out", kind=Slow, hub_always_push=always, hub_strategy="all_checkpoints").train()
    names = {path.name for path in (hub.folder / "somebody" / "out").glob("checkpoint-*")}
    assert names == ({"checkpoint-2", "checkpoint-4"} if always else {"checkpoint-2"})
    ledger = [path for path in hub.commits[0]["files"] if path.startswith("ledger/")]
    assert "ledger/ledger.json" in ledger
    assert all(path.endswith((".parquet", ".json")) for path in ledger)


def test_a_run_goes_on_from_what_was_pushed(hub: Hub, tmp_path: Path) -> None:
    options = {"push_to_hub": False, "lr_scheduler_type": "constant", "max_steps": 6}
    whole = _trainer(tmp_path / "whole", **options)
    whole.train()
    _train(tmp_path / "out", hub_strategy="checkpoint", lr_scheduler_type="constant")
    shutil.copytree(hub.folder / "somebody" / "out", tmp_path / "elsewhere")  # another machine
    there = _trainer(tmp_path / "elsewhere", **options)
    there.train(resume_from_checkpoint=str(tmp_path / "elsewhere" / "last-checkpoint"))
    assert torch.equal(weights_of(there.model), weights_of(whole.model))
    pd.testing.assert_frame_equal(there.ledger.to_pandas(), whole.ledger.to_pandas())


def test_a_push_by_hand_has_a_card_with_the_figures_of_the_mixture(hub: Hub, tmp_path: Path) -> None:
    trainer = _train(tmp_path / "out", hub_strategy="end")
    trainer.push_to_hub(commit_message="Done", dataset="three streams", tags=["mixture"])
    assert [commit["message"] for commit in hub.commits] == ["Done"]
    repository = hub.folder / "somebody" / "out"
    card = ModelCard.load(repository / "README.md")
    assert "mixture" in card.data.tags
    assert "Worst Loss" in card.text
    by_trainer, section = (repository / "README.md").read_text().split("\n## Training data and its mixture\n")
    assert section.count("\n| `a` |") == 2  # among the sources, and over time
    Trainer.create_model_card(trainer, tags=["mixture"], model_name="out", dataset="three streams")
    assert by_trainer.rstrip("\n") == (tmp_path / "out" / "README.md").read_text().rstrip("\n")
    assert not list(repository.glob("checkpoint-*"))
    pd.testing.assert_frame_equal(Ledger(repository / "ledger").clock(), trainer.ledger.clock())
    trainer.save_model()  # pushes too, as by the Trainer
    assert hub.commits[-1]["message"] == "Model save"
