"""`inspect_trainer`, for a script without a recipe."""

from pathlib import Path

import pytest

from mixer import MixingTrainer, inspect_trainer
from mixer.tools.analysis.inspect.of_trainer import task_of
from mixer.utils.errors import InvalidTypeError
from tests.helpers import build_model
from tests.mixer.tools.analysis.inspect.sources import leaking, plain
from tests.mixer.trainer.runs import make
from tests.refusals import refused


def _trainer(folder: Path) -> MixingTrainer:
    parts, evaluates = leaking(), {"eval_strategy": "steps", "eval_steps": 2}
    data = {"train_dataset": {"a": plain(), "b": parts["train"]}, "eval_dataset": {"b": parts["validation"]}}
    return make(folder, max_steps=2, **data, **evaluates)


def test_a_script_gets_the_findings_and_trains_as_without(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked, plain_run = _trainer(tmp_path / "asked"), _trainer(tmp_path / "plain")
    found = {(one.kind, *one.streams): one.figure for one in inspect_trainer(asked)}
    assert found == {
        ("repeated_samples", "b"): 4 / 40,
        ("validation_in_training", "b"): 5 / 10,
        ("shared_samples", "a", "b"): 3 / 40,
        ("no_evaluation", "a"): 1,
    }
    screen = capsys.readouterr().out
    for words in ("first step", "8 samples in 1 micro-batch", "4 warnings", "5 of 10 samples (50.0%) of 'b'"):
        assert words in screen
    assert list((tmp_path / "asked").iterdir()) == []
    losses = []
    for trainer in (asked, plain_run):
        trainer.train()
        losses.append([entry["loss"] for entry in trainer.state.log_history if "loss" in entry])
    assert losses[0] == losses[1]


def test_the_task_is_that_of_the_models_class(tmp_path: Path) -> None:
    names = {"llama": "causal-lm", "bert-masked-lm": "masked-lm", "bert-tokens": "token-classification"}
    assert {name: task_of(build_model(name)) for name in names} == names
    with refused("num_samples"):
        inspect_trainer(_trainer(tmp_path), num_samples=0)


def test_what_is_no_mixing_trainer_is_refused() -> None:
    with refused("trainer", kind=InvalidTypeError, found="NoneType"):
        inspect_trainer(None)  # type: ignore[arg-type]
