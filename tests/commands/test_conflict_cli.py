"""Aggregated gradients from a recipe and from the command line."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from mixer.cli.entry import main
from tests.commands.test_cli import RECIPE

pytest.importorskip("torchjd")


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    training = {**RECIPE["training"], "eval_on_start": False, "save_strategy": "steps", "save_steps": 4}
    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump({**RECIPE, "training": {**training, "output_dir": str(tmp_path / "run")}}))
    return path


def _log(folder: Path) -> list[dict[str, Any]]:
    state = json.loads((folder / "checkpoint-4" / "trainer_state.json").read_text())
    return [entry for entry in state["log_history"] if "conflicts" in entry]


def test_a_name_on_the_command_line(recipe: Path, tmp_path: Path) -> None:
    main(["train", str(recipe), "--conflict", "upgrad"])
    entries = _log(tmp_path / "run")
    assert len(entries) == 2
    assert {"conflict_weight/python", "conflict_weight/cpp"} <= set(entries[0])
    written = yaml.safe_load((tmp_path / "run" / "recipe.yaml").read_text())
    assert written["conflict"] == "upgrad"
    # The recipe that was written trains the same.
    main(["train", str(tmp_path / "run" / "recipe.yaml"), "--training.output_dir", str(tmp_path / "again")])
    again = _log(tmp_path / "again")
    assert [entry["conflict_weight/cpp"] for entry in again] == [entry["conflict_weight/cpp"] for entry in entries]


def test_a_class_with_arguments(recipe: Path, tmp_path: Path) -> None:
    given = {"class_path": "GradientAggregation", "init_args": {"aggregator": "cagrad", "options": {"c": 0.0}}}
    main(["train", str(recipe), "--conflict", json.dumps(given)])
    for entry in _log(tmp_path / "run"):  # with c = 0 it is the ordinary gradient
        assert entry["conflict_weight/python"] == pytest.approx(1.0, abs=1e-6)
        assert entry["conflict_weight/cpp"] == pytest.approx(1.0, abs=1e-6)


def test_it_is_in_recipes_and_off_without(recipe: Path, tmp_path: Path) -> None:
    text = yaml.safe_load(recipe.read_text())
    recipe.write_text(yaml.safe_dump({**text, "conflict": "mgda"}))
    main(["train", str(recipe)])
    assert _log(tmp_path / "run")
    main(["train", str(recipe), "--conflict", "null", "--training.output_dir", str(tmp_path / "off")])
    assert not _log(tmp_path / "off")


def test_a_run_goes_on_with_the_same_alone_unless_told_otherwise(
    recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["train", str(recipe), "--training.save_steps", "3", "--training.max_steps", "6", "--conflict"]
    main([*options, "pcgrad"])
    shutil.rmtree(tmp_path / "run" / "checkpoint-6")
    for other, now in (("mgda", "conflict=mgda(epsilon=0.001, max_iters=100)"), ("null", "nothing")):
        with pytest.raises(SystemExit) as stop:
            main([*options, other, "--resume", "must"])
        assert stop.value.code == 2
        assert f"gradient were conflict=pcgrad and are {now} now" in " ".join(capsys.readouterr().err.split())
    main([*options, "mgda", "--resume", "must", "--allow_inexact", "true"])
    assert (tmp_path / "run" / "checkpoint-6").is_dir()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            "upgrade",
            "no aggregator is called 'upgrade'; choose one of ['pcgrad', 'cagrad', 'mgda', 'nash-mtl', 'upgrad']",
        ),
        ('{"class_path": "GradientAggregation", "init_args": {"aggregator": "median"}}', "no aggregator is called"),
        (
            '{"class_path": "GradientAggregation", "init_args": {"aggregator": "cagrad", "options": {"c": -1}}}',
            "c must be non-negative",
        ),
    ],
)
def test_what_is_wrong_is_said(recipe: Path, given: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["train", str(recipe), "--conflict", given])
    assert stop.value.code == 2
    assert message in capsys.readouterr().err
