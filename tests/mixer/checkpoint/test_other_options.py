"""Runs that resume with other options than their checkpoint's: refused, or told which of both go on."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from mixer import Fixed, MixingTrainer, Stream, schedules
from mixer.checkpoint.checkpoint_files import read_state
from mixer.trainer import resume
from tests.helpers import three_streams
from tests.mixer.trainer.runs import make, train
from tests.refusals import refused

SAVED: dict[str, Any] = {
    "max_steps": 2,
    "save_strategy": "steps",
    "save_steps": 2,
    "optim": "adamw_torch",
    "lr_scheduler_type": "constant",
    "data_seed": 1,
    "per_device_train_batch_size": 8,
    "gradient_accumulation_steps": 2,
}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("saved")
    train(folder, **SAVED)
    return folder / "checkpoint-2"


def test_the_table_of_what_is_restored_names_all_that_is_saved(checkpoint: Path) -> None:
    assert set(read_state(checkpoint)) - set(re.findall(r"`(\w+)`", str(resume.__doc__))) == set()


def resumed(folder: Path, checkpoint: Path, **changes: Any) -> MixingTrainer:
    """One more step from the checkpoint, with other options."""
    return train(folder, resume=checkpoint, **{**SAVED, "max_steps": 3, "save_strategy": "no", **changes})


def with_a(**options: Any) -> dict[str, Any]:
    streams = three_streams()
    return {**streams, "a": Stream("a", streams["a"], **options)}


KEPT = [("learning_rate", 0.05), ("weight_decay", 0.1), ("adam_beta1", 0.8), ("adam_epsilon", 1e-6), ("seed", 7)]
TAKEN: list[tuple[str, dict[str, Any]]] = [
    ("max_steps", {}),
    ("lr_scheduler_type", {"lr_scheduler_type": "linear"}),
    ("warmup_steps", {"warmup_steps": 3, "lr_scheduler_type": "constant_with_warmup"}),
    ("max_grad_norm", {"max_grad_norm": 0.5}),
    ("drawing", {"drawing": "multinomial"}),
    ("nonfinite", {"nonfinite": "raise"}),
    ("on_sample_error", {"on_sample_error": "skip"}),
    ("streams.a.max_epochs", {"train_dataset": with_a(max_epochs=9)}),
    ("streams.a.loss_weight", {"train_dataset": with_a(loss_weight=2)}),
]


def _part(line: str, begins: str) -> str:
    return line.partition(begins)[2].partition("These")[0]


@pytest.mark.parametrize(("name", "value"), KEPT)
def test_what_the_optimizer_holds_goes_on(tmp_path, checkpoint, caplog, name, value) -> None:
    trainer = resumed(tmp_path, checkpoint, **{name: value})
    group = trainer.optimizer.param_groups[0]
    assert (group["lr"], group["weight_decay"], group["betas"][0], group["eps"]) == (0.1, 0.0, 0.9, 1e-8)
    (line,) = [text for text in caplog.messages if "options" in text]
    assert f" {name} (" in _part(line, "These keep their saved values")
    assert f"{value!r} now" in line


@pytest.mark.parametrize(("name", "changes"), TAKEN)
def test_what_takes_effect_is_told(tmp_path, checkpoint, caplog, name, changes) -> None:
    resumed(tmp_path, checkpoint, **changes)
    (line,) = [text for text in caplog.messages if "options" in text]
    assert f" {name} (" in _part(line, "These have their new values")


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"mixing": "Uniform"}, "mixing was"),
        ({"mixing": Fixed({"a": 1, "b": 1, "c": 2})}, "mixing was|weights were"),
        ({"batch_size": schedules.AdaBatch([9], initial=16), "gradient_accumulation_steps": 1}, "batch_size was"),
        ({"epoch_size": 20}, "epoch_size"),
        ({"data_seed": 2}, "data_seed"),
        ({"train_dataset": dict(reversed(three_streams().items()))}, "streams"),
        ({"optim": "sgd", "optim_args": "momentum=0.9"}, "optimizer was AdamW .* is SGD now"),
    ],
)
def test_what_would_be_another_run_is_refused(tmp_path: Path, checkpoint: Path, changes: Any, names: str) -> None:
    with pytest.raises(ValueError, match=names):
        resumed(tmp_path, checkpoint, **changes)


def test_an_optimizer_that_lacks_what_the_own_one_needs_is_named(tmp_path: Path) -> None:
    def own(kind: Any, **options: Any) -> MixingTrainer:
        trainer = make(tmp_path, **{**SAVED, "max_steps": 3, "save_steps": 1})
        trainer.optimizer = type("Own", (kind,), {})(trainer.model.parameters(), lr=0.1, **options)
        return trainer

    own(torch.optim.AdamW).train()
    with refused("optim"):
        own(torch.optim.SGD, momentum=0.9).train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
