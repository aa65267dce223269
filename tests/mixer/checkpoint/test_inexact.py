"""Going on on purpose although something is not what it was."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaForCausalLM

from mixer import MixingTrainer
from tests.helpers import Tokens, weights_of
from tests.mixer.trainer import runs
from tests.refusals import refused

STREAMS = {"a": Tokens(40, 1), "b": Tokens(30, 2)}


def _train(folder: Path, resume: Any = None, **changes: Any) -> MixingTrainer:
    saved = {"save_strategy": "steps", "save_steps": 3, "logging_steps": 2, "max_steps": 6}
    options = {"train_dataset": STREAMS, "batch_size": 6, "epoch_size": 60, "mixing": "Uniform", **changes}
    return runs.train(folder, resume=resume, **saved, **options)


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> MixingTrainer:
    return _train(tmp_path_factory.mktemp("whole"))


@pytest.fixture
def checkpoint(unbroken: MixingTrainer, tmp_path: Path) -> Path:
    """Of step 3, in a copy of the run."""
    return Path(shutil.copytree(str(unbroken.args.output_dir), tmp_path / "run")) / "checkpoint-3"


MORE = {"train_dataset": {**STREAMS, "c": Tokens(20, 3)}}


@pytest.mark.parametrize(
    ("changes", "totals", "seen"), [(MORE, [6] * 6, [15, 15, 6]), ({"batch_size": 4}, [6, 6, 6, 4, 4, 4], [15, 15])]
)
def test_a_run_takes_up_one_stream_more_or_another_size(checkpoint, changes, totals, seen) -> None:
    with refused("allow_inexact"):
        _train(checkpoint.parent, checkpoint, **changes)
    rows = _train(checkpoint.parent, checkpoint, allow_inexact=True, **changes).ledger.to_pandas()
    assert rows.groupby("step")["count"].sum().tolist() == totals
    assert rows[rows["step"] <= 3]["stream"].unique().tolist() == ["a", "b"]
    assert rows[rows["step"] == 6]["seen"].tolist() == seen


def test_weights_that_were_saved_again_in_shards_are_taken_if_told_to(checkpoint, caplog, unbroken) -> None:
    model = LlamaForCausalLM.from_pretrained(checkpoint)
    model.config.made_of = "shards"  # another size than the run's own
    (checkpoint / "model.safetensors").unlink()
    model.save_pretrained(checkpoint, max_shard_size="5KB")
    with refused("resume_from_checkpoint"):
        _train(checkpoint.parent, checkpoint)
    with caplog.at_level("WARNING"):
        resumed = _train(checkpoint.parent, checkpoint, allow_inexact=True)
    assert f"Resumed inexactly from {checkpoint}: its weights were saved again" in caplog.text
    assert torch.equal(weights_of(resumed.model), weights_of(unbroken.model))
    next(checkpoint.glob("model-00001-*")).unlink()
    with refused("resume_from_checkpoint"):
        _train(checkpoint.parent, checkpoint, allow_inexact=True)


def test_a_run_takes_up_another_batch_size_or_accumulation_as_the_trainer_does(tmp_path: Path) -> None:
    """With `allow_inexact` alone; step and learning rate go on as the Trainer's do."""
    sizes = {"batch_size": None, "epoch_size": None, "mixing": None, "train_dataset": Tokens(24, 1)}
    sizes |= {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 2}
    whole = _train(tmp_path, **sizes)
    others: list[dict[str, Any]] = [{"gradient_accumulation_steps": 3}, {"per_device_train_batch_size": 4}]
    for number, changes in enumerate(others):
        with refused("batch_size"):
            _train(tmp_path / str(number), tmp_path / "checkpoint-3", **{**sizes, **changes})
        resumed = _train(tmp_path / str(number), tmp_path / "checkpoint-3", **{**sizes, **changes}, allow_inexact=True)
        rows = resumed.ledger.to_pandas()
        samples = 2 * 3 if number == 0 else 4 * 2
        assert rows["count"].tolist()[-3:] == [samples] * 3
        assert (rows["seen"] - rows["count"]).tolist()[-3] == 3 * 4
        assert runs.logged(resumed, "learning_rate") == runs.logged(whole, "learning_rate")
